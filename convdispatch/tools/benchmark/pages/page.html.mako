<%!
  WORDS = {"fwd": "forward", "bwd_data": "data gradient", "bwd_weights": "weights gradient"}
%><%def name="bar(value, most, colour='var(--c0)')"><span class="bar"><i style="width:${"%.1f" % (100 * min(1, (value or 0) / most) if most else 0)}%;background:${colour}"></i></span></%def>\
<%def name="broken(name)">${name.replace("&", "&amp;").replace("<", "&lt;").replace("_", "_<wbr>").replace(".", ".<wbr>") | n}</%def>\
<%def name="twice(words)">${words.replace(" ", "<br>") | n}</%def>\
<%def name="times(line)"><%
  rivals = [t for t in (line.measured.best, *map(line.measured.peer, peers)) if t and t.median_ms]
  longest = max([t.median_ms for t in rivals], default=1)
  most = min(2 * longest, max([t.ci_ms[1] for t in rivals if t.ci_ms], default=longest) * 1.01)
  most = max(most, longest)
%><span class="times">\
% for css, timed in [(colour.get(family(line.winner), 'var(--ink)'), line.measured.best), *[('var(--peer)', line.measured.peer(p)) for p in peers]]:
% if timed and timed.median_ms:
<span class="${'' if timed is line.measured.best else 'peer'}" title="${number(timed.median_ms, 4)} ms, ${interval(timed)}"><i style="width:${"%.1f" % (100 * timed.median_ms / most)}%;background:${css}"></i>\
% if timed.ci_ms:
<u style="left:${"%.1f" % (100 * timed.ci_ms[0] / most)}%;width:${"%.1f" % (100 * (min(most, timed.ci_ms[1]) - timed.ci_ms[0]) / most)}%"></u>\
% endif
</span>\
% endif
% endfor
</span></%def>\
<%def name="ratio(value)"><td class="n ${'' if not value else 'good' if value >= 1 else 'bad'}">${number(value)}</td></%def>\
<%def name="swatch(name)"><span class="name"><i class="swatch" style="background:${colour.get(family(name), 'var(--grid)')}"></i>${broken(name)}</span></%def>\
<%def name="legend()"><p class="legend">Algorithms: \
% for name, css in colour.items():
<span><i class="swatch" style="background:${css}"></i>${name}</span> \
% endfor
% if any(not line.winner for line in lines):
<span><i class="swatch" style="background:var(--ink)"></i>unknown, too few candidates were measured</span> \
% endif
% if peers:
<span><i class="swatch" style="background:var(--peer)"></i>peers</span>
% endif
</p></%def>\
<%def name="doubt()">${'class="doubt"' if busy else '' | n}</%def>\
<%def name="marked()">\
% if busy:
<br><em>busy machine: not to be trusted</em>\
% endif
</%def>\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Convolutions on ${device["name"]}: convdispatch bench</title>
<style>
${sheet | n}</style></head><body>

<h1>How fast are convolutions on ${device["name"]}?</h1>
<p class="soft">Measured with convdispatch bench, ${report.environment["created"][:10]}</p>
<p>Nearly all of the time of a convolutional network goes into its convolutions, and there are many ways to compute one.
convdispatch is a Python library in which such ways, called solvers, compete on OpenCL devices. This page shows, layer by
layer, how long each solver takes on this device, which one wins, what the library would have chosen without measuring,
and how far all this is from what the device can do.</p>
% if report.interrupted or missing:
<p class="warn">${'The time limit was reached' if report.time_limit else 'The run was ended early'}: ${missing} problems that were asked for are not measured.</p>
% endif
% if busy:
<p class="warn">${busy}</p>
% endif

<div class="tiles">
<div><b>${len({line.measured.problem for line in lines})}</b>distinct problems</div>
% for dtype, roof in report.roofs.items():
<div><b>${number(roof["flops"]["rate"] / 1e9)}</b>GFLOP/s multiply-add (${dtype})${marked()}</div>
<div><b>${number(roof["bandwidth"]["rate"] / 1e9)}</b>GB/s copy${marked()}</div>
% if roof.get("matrix"):
<div><b>${number(roof["matrix"]["rate"] / 1e9)}</b>GFLOP/s matrix units (${dtype})</div>
% endif
% endfor
<div ${doubt()}><b>${share(fraction)}</b>of the roofline, geometric mean${marked()}</div>
<div ${doubt()}><b>${number(regret) if regret else "unknown"}</b>regret of the choice, on ${known[0]} of ${known[1]} problems with evidence${marked()}</div>
% for peer, mean in means.items():
<div ${doubt()}><b>${"withheld" if busy else number(mean)}</b>${peer}'s time over ours, geometric mean of ${sum(1 for line in lines if line.ratio(peer))} layers${marked()}</div>
% endfor
</div>
% for words in evidence:
<p class="soft">${words[0].upper() + words[1:]}.</p>
% endfor

<h2>What was measured, on what</h2>
<table>
<tr><th>device</th><td>${device["title"]} (${device["type"]}, ${device["arch"]}, ${device["compute_units"]} compute units, ${number(device["global_mem_size"] / 2**30)} GiB), driver ${device["driver"]}</td></tr>
<tr><th>software</th><td>Python ${report.environment["python"]}, ${report.environment["system"]}; ${", ".join(f"{n} {v}" for n, v in report.environment["packages"].items())}</td></tr>
<tr><th>solvers of</th><td>${", ".join(f"{n} {v}" for n, v in report.environment["plugins"].items())}</td></tr>
% for peer, settings in report.settings.get("peers", {}).items():
<tr><th>${peer}</th><td>${", ".join(f"{n} {v}" for n, v in settings.items())}</td></tr>
% endfor
% for peer, reason in report.settings.get("missing_peers", {}).items():
<tr><th>${peer}</th><td>not measured: ${reason}</td></tr>
% endfor
% for dtype, roof in report.roofs.items():
<tr><th>ceilings, ${dtype}</th><td>multiply-add by ${roof["flops"]["how"]}; copy by ${roof["bandwidth"]["how"]}${"; matrix units by " + roof["matrix"]["how"] if roof.get("matrix") else "; no matrix units were measured"}</td></tr>
% endfor
</table>
% if report.settings.get("command"):
<p>To measure the same again:</p>
<pre>${report.settings["command"]}</pre>
% endif

<h2>Nets</h2>
<p>Sums over a net's convolutions, each counted as often as the net runs it. <i>Best</i> takes the fastest solver of each
layer; <i>chosen</i> what the library would have run without searching; <i>roofline</i> the least time that the measured
ceilings allow. A ratio is the peer's time over ours: above 1, ours is faster.</p>
<div class="scroll"><table>
<tr><th>net</th><th>direction</th><th class="n">batch</th><th class="n">layers</th><th class="n">GFLOP</th><th class="n">best ms</th><th class="n">chosen ms</th><th class="n">roofline ms</th><th class="n">GFLOP/s</th>
% for peer in peers:
<th class="n">${peer} ms</th><th class="n">ratio of sums</th><th class="n">geomean</th>
% endfor
</tr>
% for net in nets:
<tr><td>${net.name}</td><td>${WORDS[net.direction]}</td><td class="n">${", ".join(map(str, net.batch))}</td><td class="n">${net.layers}</td><td class="n">${number(net.gflop)}</td><td class="n">${number(net.best_ms, 4)}</td><td class="n">${number(net.chosen_ms, 4)}</td><td class="n">${number(net.roof_ms, 4)}</td><td class="n">${number(net.gflops)}</td>
% for peer in peers:
<% theirs, ours, some = net.peers.get(peer, (None, None, 0)) %><td class="n">${number(theirs, 4)}\
% if theirs and some < net.layers:
 <small>(${some} layers)</small>\
% endif
</td>\
% if busy and theirs:
<td class="n soft">withheld</td><td class="n soft">withheld</td>
% else:
${ratio(theirs / ours if theirs else None)}${ratio(net.ratios[peer])}
% endif
% endfor
</tr>
% endfor
</table></div>

<h2>Layers</h2>
<p>The fastest solver of each layer and its speed, counted as operations of the direct sum. The share of the roofline may
exceed 100 % where an algorithm needs fewer operations, or where weights stay in a cache. <i>Error</i> is relative, against float64: on normal data, and on data whose images, channels and summed axis differ in scale, there of the worst plane. <i>Regret</i> is the time
of what the library would have chosen over the best time: 1 is a perfect choice. <i>Measured</i> says how many of the candidates
that accept a layer have a time: with fewer than three its winner, regret and ratio are unknown. A layer has one number, the
median of its last benchmarking with its interval (95 %), in which the best, the chosen one and the peers ran in turns on the same
data. Open a layer for every solver, in proportion to that number. In <i>compared</i> the upper bar is ours, peers stand below in grey,
the marks are the intervals, and each layer has a scale of its own. Click a heading to sort.</p>
${legend()}
% for net in nets:
<% mine = [line for line in lines if (line.layer.net, line.problem.direction) == (net.name, net.direction)] %>\
<h3>${net.name}, ${WORDS[net.direction]}</h3>
<div class="scroll"><table class="layers">
<tr><th>layer</th><th>type</th><th>fastest</th><th class="n">measured</th><th class="n">ms, 95 %</th><th>compared</th><th class="n">GFLOP/s</th><th class="n">roofline</th><th class="n">error</th><th class="n">chosen's error</th><th class="n">regret</th>
% for peer in peers:
<th class="n">${peer} ms, error</th><th class="n">ratio</th>
% endfor
</tr>
% for line in mine:
<% best = line.measured.best %>\
<tr title="${line.measured.problem}"><td title="${line.measured.problem}">${broken(line.layer.name if len(line.layer.name) < 30 else line.layer.name.split("_", 2)[-1])}${f" ×{line.layer.count}" if line.layer.count > 1 else ""}</td><td>${line.kind}</td><td>${swatch(line.winner) if line.winner else line.verdict}</td><td class="n">${line.coverage}</td><td class="n">${number(line.ms, 4)}${"?" if line.measured.problem in disturbed else ""}<br><small>${interval(best)}</small></td><td>${times(line)}</td><td class="n">${number(line.gflops)}</td><td class="n">${bar(line.fraction, 1, colour.get(family(line.winner), "var(--ink)"))} ${share(line.fraction)}</td><td class="n two">${twice(errors(best))}</td><td class="n two">${twice(errors(line.measured.chosen))}</td><td class="n">${number(line.measured.regret) if line.measured.sure else "unknown"}</td>
% for peer in peers:
<td class="n">${number(line.measured.peer_ms(peer), 4)}<br><small>${errors(line.measured.peer(peer))}</small></td>\
% if line.measured.problem in disturbed and line.ratio(peer):
<td class="n soft">${number(line.ratio(peer))}?</td>
% else:
${ratio(line.ratio(peer))}
% endif

% endfor
</tr>
% endfor
</table></div>
<details><summary>Every solver, layer by layer</summary>
% for line in mine:
<details><summary><small>${line.layer.name}: every solver, ${len(line.measured.rows)} candidates</small></summary>
<p class="soft"><code>${line.measured.problem}</code>${f"; {line.measured.conditions}" if line.measured.conditions else ""}\
% if line.measured.chosen:
; without searching: ${line.measured.chosen.solver} (${line.measured.chosen.source}), ${number(line.measured.chosen.median_ms, 4)} ms\
% endif
</p>
<div class="scroll"><table>
<tr><th>solver</th><th>configuration</th><th>state</th><th class="n">ms</th><th class="n">95 % interval</th><th class="n">times the best</th><th class="n">runs</th><th class="n">error</th><th class="n">workspace</th></tr>
% for row in line.measured.rows[:40]:
<% best = line.measured.best; own = best and (row.solver, row.config) == (best.solver, best.config); base = line.measured.searched_ms %>\
<tr><td>${swatch(row.solver)}</td><td><small>${", ".join(f"{k}={v}" for k, v in row.config.items())}</small></td><td>${row.status}${f": {row.reason}" if row.reason else ""}</td><td class="n">${number(line.ms, 4) if own else ""}</td><td class="n">${interval(best) if own else ""}</td><td class="n">${number(row.median_ms / base) if row.median_ms and base else ""}${", not benchmarked" if row.median_ms and row.benchmarked is False else ""}</td><td class="n">${row.count or ""}</td><td class="n">${errors(row)}</td><td class="n">${f"{number(row.workspace / 2**20)} MiB" if row.workspace is not None else ""}</td></tr>
% endfor
% for peer in line.measured.peers:
<tr class="other"><td>${peer.peer} ${peer.variant}</td><td></td><td>peer${f": {peer.reason}" if peer.reason else ""}</td><td class="n">${number(peer.median_ms, 4)}</td><td class="n">${interval(peer)}</td><td class="n">${number(peer.median_ms / line.ms) if peer.median_ms and line.ms and line.measured.sure else ""}</td><td class="n">${peer.count or ""}</td><td class="n">${errors(peer)}</td><td></td></tr>
% endfor
</table></div></details>
% endfor
</details>
% endfor

<h2>Roofline</h2>
<p>Each mark is a problem: how fast it runs, counted as operations of the direct sum, against the operations for each byte that must move. Dashed
are the ceilings that were measured: left of the bend memory bounds a layer, right of it arithmetic. Winograd and FFT may stand above.</p>
${legend()}
<div class="picture">${roofline | n}</div>

<h2>Gaps: below ${share(gap)} of the roofline</h2>
% if gaps:
<p>What there is to win, the most lost time first: a list for whoever writes a plugin.</p>
<div class="scroll"><table>
<tr><th>problem</th><th>type</th><th>fastest</th><th class="n">share</th><th class="n">ms</th><th class="n">roofline ms</th><th>bound by</th></tr>
% for line in gaps:
<tr><td><code>${line.measured.problem}</code></td><td>${line.kind}</td><td>${swatch(line.winner) if line.winner else line.verdict}</td><td class="n">${share(line.fraction)}</td><td class="n">${number(line.ms, 4)}</td><td class="n">${number(line.roof_ms, 4)}</td><td>${line.bound}</td></tr>
% endfor
</table></div>
% else:
<p>None.</p>
% endif

% if faults or failures:
<h2>What went wrong</h2>
<table>
% for line in failures:
<tr><td><code>${line.measured.problem}</code></td><td class="bad">${line.measured.failure}</td></tr>
% endfor
% for line, row in faults:
<tr><td><code>${line.measured.problem}</code></td><td class="bad">${row.solver} ${row.status}: ${row.reason}</td></tr>
% endfor
</table>
% endif

<h2>How it was measured</h2>
<p>Every solver's result was compared with a float64 reference before it was timed; one that is wrong has no time. Rivals ran
in interleaved rounds on the same random data, with several copies of it in turn so that none stays in a cache; times are
medians, with the 20th and 80th percentile. The best solver, the chosen one and the peers ran once more in the same rounds, from
which the ratios come. A peer runs in each memory format that it has, and its better one counts. The roofline of a layer is
the larger of its operations (two a multiply-add of the direct sum) over the multiply-add ceiling and its compulsory
traffic (each of its three tensors once) over the copy bandwidth; both ceilings were measured in the same run.</p>
</body></html>
