// Whether dictionaries, lists and tables of names hold the very objects that they held: identities alone are compared,
// and no code of Python runs meanwhile.

#pragma once

#include "abi.h"

namespace launcher {

// same_items(containers, held) -> bool: for each list `held` has a tuple of its items, for each dictionary one of key,
// value, key, value in its order. Raises TypeError for other things than that.
inline PyObject *same_items(PyObject *, PyObject *given) {
  PyObject *containers, *held;
  PyObject *list = reinterpret_cast<PyObject *>(&PyList_Type);
  if (!PyArg_ParseTuple(given, "O!O!", list, &containers, list, &held)) return nullptr;
  const Py_ssize_t many = PyList_Size(containers);
  if (PyList_Size(held) != many) return PyErr_Format(PyExc_TypeError, "as many tuples as containers are compared");
  for (Py_ssize_t i = 0; i < many; ++i) {
    PyObject *container = PyList_GetItem(containers, i), *items = PyList_GetItem(held, i);
    const bool is_table = PyDict_Check(container);
    if (!(is_table || PyList_Check(container)) || !PyTuple_Check(items))
      return PyErr_Format(PyExc_TypeError, "dictionaries and lists are compared with tuples");
    const Py_ssize_t size = PyTuple_Size(items);
    if (!is_table) {
      if (PyList_Size(container) != size) Py_RETURN_FALSE;
      for (Py_ssize_t at = 0; at < size; ++at)
        if (PyTuple_GetItem(items, at) != PyList_GetItem(container, at)) Py_RETURN_FALSE;
      continue;
    }
    if (2 * PyDict_Size(container) != size) Py_RETURN_FALSE;
    PyObject *key, *value;
    Py_ssize_t place = 0, at = 0;
    while (PyDict_Next(container, &place, &key, &value)) {
      if (PyTuple_GetItem(items, at) != key || PyTuple_GetItem(items, at + 1) != value) Py_RETURN_FALSE;
      at += 2;
    }
  }
  Py_RETURN_TRUE;
}

// same_names(tables, names, values) -> bool: whether each table, a module's or a class's, has this value for this name.
// Lists of one length; raises what a table's look-up raises, as KeyError.
inline PyObject *same_names(PyObject *, PyObject *given) {
  PyObject *tables, *names, *values;
  PyObject *list = reinterpret_cast<PyObject *>(&PyList_Type);
  if (!PyArg_ParseTuple(given, "O!O!O!", list, &tables, list, &names, list, &values)) return nullptr;
  const Py_ssize_t many = PyList_Size(tables);
  if (PyList_Size(names) != many || PyList_Size(values) != many)
    return PyErr_Format(PyExc_TypeError, "as many names and values as tables are compared");
  for (Py_ssize_t i = 0; i < many; ++i) {
    Ref found(PyObject_GetItem(PyList_GetItem(tables, i), PyList_GetItem(names, i)));
    if (!found) return nullptr;
    if (found.get() != PyList_GetItem(values, i)) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

}  // namespace launcher
