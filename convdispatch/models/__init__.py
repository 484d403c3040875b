"""Well-known nets, as modules: one file for each family, and ``catalogue`` to create one by its name.

- ``catalogue``: nets by name.
- ``classics``: LeNet, AlexNet, OverFeat, VGG.
- ``efficientnet``: EfficientNet-lite0.
- ``googlenet``: GoogLeNet.
- ``resnet``: ResNet-50.
"""
