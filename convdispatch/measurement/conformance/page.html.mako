<%!
  COLOUR = {"passed": "good", "failed": "bad", "incomplete": "soft", "nothing computed": "soft", "refused": "soft"}
%>\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>${sections[0]["report"].plugin["name"]} on ${", ".join(one["device"]["name"] for one in sections)}: convdispatch verify</title>
<style>
:root { color-scheme: light dark; --paper:#fcfcfb; --ink:#1c1d20; --soft:#62656d; --grid:#dddee2; --card:#f2f2ef;
  --good:#12723c; --bad:#b3261e }
@media (prefers-color-scheme: dark) { :root { --paper:#17181b; --ink:#e7e8ea; --soft:#a2a6af; --grid:#393c43;
  --card:#202226; --good:#6fd29a; --bad:#ff8f86 } }
body { font:15px/1.5 system-ui,sans-serif; color:var(--ink); background:var(--paper); max-width:1180px; margin:2rem auto;
  padding:0 1.2rem }
h1 { font-size:1.7rem; line-height:1.2; margin-bottom:.2rem } h2 { font-size:1.2rem; margin:2.4rem 0 .4rem }
p { max-width:95ch } .soft { color:var(--soft) } .good { color:var(--good) } .bad { color:var(--bad) }
code, pre { font:13px/1.45 ui-monospace,monospace } pre { background:var(--card); padding:.7rem 1rem; border-radius:6px;
  white-space:pre-wrap; overflow-wrap:anywhere }
.tiles { display:flex; flex-wrap:wrap; gap:.7rem; margin:1.2rem 0 } .tiles div { background:var(--card); border-radius:8px;
  padding:.6rem 1rem; min-width:8.5rem } .tiles b { display:block; font-size:1.35rem; font-variant-numeric:tabular-nums }
.scroll { overflow-x:auto } table { border-collapse:collapse; width:100%; font-size:13.5px }
th, td { text-align:left; padding:.28rem .45rem; border-bottom:1px solid var(--grid); vertical-align:top }
th { color:var(--soft); font-weight:600 } .n { text-align:right; font-variant-numeric:tabular-nums }
details { border-bottom:1px solid var(--grid) } summary { cursor:pointer; padding:.3rem 0 }
</style></head><body>

% if len(sections) > 1:
<h1>Does ${sections[0]["report"].plugin["name"]} compute convolutions right on ${len(sections)} kinds of device?</h1>
<div class="scroll"><table>
<tr><th>device</th><th>verdict</th><th class="n">computed</th><th class="n">refused</th><th class="n">failed</th><th class="n">seconds</th></tr>
% for number, one in enumerate(sections):
<tr><td><a href="#kind${number}">${labels[number]}</a></td><td class="${COLOUR.get(one["verdict"], "soft")}">${one["verdict"]}</td>
<td class="n">${len(one["passed"])}</td><td class="n">${len(one["refused"])}</td><td class="n">${len(one["failed"])}</td><td class="n">${"%.0f" % one["report"].seconds}</td></tr>
% endfor
</table></div>
<h2>Where the kinds differ</h2>
% if differences:
<details open><summary>${len(differences)} outcomes are not the same on every kind</summary><div class="scroll"><table>
<tr><th>case</th><th>problem</th><th>solver</th>\
% for label in labels:
<th>${label}</th>\
% endfor
</tr>
% for case, problem, solver, said in differences:
<tr><td>${case}</td><td><code>${problem}</code></td><td>${solver}</td>\
% for status in said:
<td class="${COLOUR.get(status, "soft")}">${"computed" if status == "passed" else status}</td>\
% endfor
</tr>
% endfor
</table></div></details>
% else:
<p>Nowhere: every solver computed, and refused, the same cases on all of them.</p>
% endif
% endif
% for number, one in enumerate(sections):
<div id="kind${number}">
${section(**one)}
</div>
% endfor
</body></html>
<%def name="section(report, device, levels, verdict, failed, passed, refused, reasons, groups, checks, long, coverage, families, worst, cases)">

<h1>Does ${report.plugin["name"]} compute convolutions right on ${device["name"]}?</h1>
<p class="soft">Verified with convdispatch verify, ${report.environment["created"][:10]}</p>
<p>convdispatch runs convolutions by plugins that anybody may ship. This page shows what came of its conformance kit:
every solver of the plugin was asked a list of problems, and had to refuse each in words, or compute it right, between
guard zones, over memory that was filled with NaN, with every input compared afterwards.</p>

<div class="tiles">
<div><b class="${COLOUR.get(verdict, "soft")}">${verdict}</b>${"the cases that were chosen" if report.selected else "all levels that ran"}</div>
% for level, found in levels.items():
<div><b class="${'bad' if found['failed'] else ''}">${found["passed"]} of ${sum(found.values())}</b>computed at level ${level}</div>
% endfor
<div><b>${len(passed)}</b>computed right</div>
<div><b>${len(refused)}</b>refused in words</div>
<div><b class="${'bad' if failed else ''}">${len(failed)}</b>failed</div>
<div><b>${"%.0f" % report.seconds} s</b>it took</div>
</div>

<table>
<tr><th>plugin</th><td>${report.plugin["name"]} ${report.plugin["version"]} <span class="soft">${report.plugin.get("text", "")}</span></td></tr>
<tr><th>device</th><td>${device["title"]} (${device["type"]}, ${device["arch"]}), driver ${device["driver"]}</td></tr>
<tr><th>software</th><td>Python ${report.environment["python"]}, ${report.environment["system"]}; ${", ".join(f"{n} {v}" for n, v in report.environment["packages"].items())}</td></tr>
<tr><th>cases</th><td>version ${report.version}, ${report.digest}, level ${report.level}</td></tr>
% if coverage:
<tr><th>covered</th><td>${coverage["asked"]} of the ${coverage["all"]} pairs of letters' values that the generated cases hold were asked, ${coverage["computed"]} computed</td></tr>
% endif
</table>
% if report.command:
<p>To verify the same again:</p>
<pre>${report.command}</pre>
% endif

% if report.unasked:
<p class="bad">The time ended before these ${len(report.unasked)} cases: <code>${", ".join(report.unasked)}</code></p>
% endif

% if failed:
<h2>Failures</h2>
% for group in groups(report):
% if group.common:
<p><code>${group.solver}</code>, ${group.check}: ${group.common}.</p>
% endif
% endfor
<div class="scroll"><table>
<tr><th>solver</th><th>case</th><th>check</th><th>what was found, and how to see it again</th></tr>
% for o in failed:
<tr><td>${o.solver}</td><td>${o.case}<br><code>${o.problem}</code></td><td class="bad">${o.check}</td><td>${o.reason}<br><code>${o.rerun(report.plugin["name"])}</code></td></tr>
% endfor
</table></div>
% endif

<h2>Solvers</h2>
<p>The largest relative error (norm, against float64) over all cases: integer data are exact for a direct sum, real data
are standard normal.</p>
<div class="scroll"><table>
<tr><th>solver</th><th class="n">computed</th><th class="n">refused</th><th class="n">failed</th><th class="n">error, integers</th><th class="n">error, real data</th><th>refuses</th></tr>
% for solver in report.solvers:
<tr><td>${solver}</td>
% for status in ("passed", "refused", "failed"):
<td class="n">${len(report.of(solver=solver, status=status))}</td>
% endfor
% for kind in ("integer", "real"):
<td class="n">${"" if worst[solver][kind] is None else "%.2g" % worst[solver][kind]}</td>
% endfor
<td>\
% for words, count in reasons(report.of(solver=solver))[:8]:
${words} <span class="soft">(${count})</span><br>\
% endfor
</td></tr>
% endfor
</table></div>

% if families:
<h2>Families of data</h2>
<p>The largest error of a plane (image × channel of what is written), relative to what is expected or enters, over all cases.</p>
<div class="scroll"><table>
<tr><th>solver</th>
% for family in families:
<th class="n">${family.replace("_", " ")}</th>
% endfor
</tr>
% for solver in report.solvers:
<tr><td>${solver}</td>
% for family in families:
<td class="n">${"" if worst[solver][family] is None else "%.2g" % worst[solver][family]}</td>
% endfor
</tr>
% endfor
</table></div>
% endif

<h2>What is checked</h2>
<table>
% for name, words in checks.items():
<tr><td>${name}${" *" if name in long else ""}</td><td>${words}</td></tr>
% endfor
</table>
<p class="soft">* for the cases that are marked in the list, and for the first that a solver computes of each direction.</p>

<h2>Every case</h2>
% for level in dict.fromkeys(level for level, _, _ in cases):
<details><summary>${level}: ${sum(1 for c in cases if c[0] == level)} cases</summary>
<div class="scroll"><table>
<tr><th>case</th><th>problem</th>
% for solver in report.solvers:
<th>${solver}</th>
% endfor
</tr>
% for case in (c for c in cases if c[0] == level):
<% by = {o.solver: o for o in report.outcomes if o.case == case[1]} %>\
<tr><td>${case[1]}</td><td><code>${case[2]}</code></td>
% for solver in report.solvers:
<% o = by.get(solver) %>\
<td class="${COLOUR[o.status] if o else ''}" title="${o.reason if o else ''}">${o.status if o else ""}</td>
% endfor
</tr>
% endfor
</table></div></details>
% endfor
</%def>
