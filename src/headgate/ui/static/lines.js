// The charts of timelines.

import { axis, colours, plain } from "./charts.js";

/** Milliseconds for plotly's axis of dates, which has no time zone but UTC. */
function localTime(ms) {
    return ms - new Date(ms).getTimezoneOffset() * 60000;
}

function known(values, scale) {
    return values.map((value) => (value < 0 ? null : value * scale));
}

/** A time axis over the whole timeline, also if the series are shorter. */
function timeAxis(x) {
    return axis({ type: "date", tickformat: "%H:%M:%S", tickangle: 0, range: [x[0], x.at(-1)] });
}

/** The start of each step of a timeline. */
function times(timeline) {
    return Array.from({ length: timeline.steps }, (_, index) =>
        localTime(timeline.start_ms + index * timeline.step_ms),
    );
}

const SHARES = [
    ["busy", "Busy", "busy", "", "busy"],
    ["waiting", "Waiting for coroutines", "busy-tint", "-", "busy"],
    ["back_pressured", "Back-pressured", "back", "/", "back-pale"],
    ["idle", "Idle", "idle-tint", ".", "idle"],
];

/** Busy, back-pressured and idle as stacked areas; waiting for coroutines if there is any. */
export function drawShares(chart, timeline, line) {
    const colour = colours();
    const x = times(timeline);
    const shares = SHARES.filter(([key]) => key !== "waiting" || line.waiting?.some((value) => value > 0));
    const traces = shares.map(([key, name, shade, shape, dots]) => ({
        type: "scatter",
        mode: "lines",
        stackgroup: "shares",
        name,
        x,
        y: known(line[key], 0.1),
        line: { width: 0.5, color: colour[shade], shape: "hv" },
        fillcolor: colour[shade],
        fillpattern: {
            shape,
            size: 5,
            solidity: 0.3,
            fgcolor: colour[dots],
            bgcolor: colour[shade],
            fillmode: "replace",
        },
        hovertemplate: "%{y:.0f} %",
    }));
    chart.draw(traces, { xaxis: timeAxis(x), yaxis: axis({ range: [0, 100], ticksuffix: " %", nticks: 5 }) });
}

/** Records in and out, per second. */
export function drawRates(chart, timeline, line) {
    const colour = colours();
    const x = times(timeline);
    const perSecond = 1000 / timeline.step_ms;
    const traces = [
        ["records_in", "Records in/s", colour.accent, "dot"],
        ["records_out", "Records out/s", colour.text, "solid"],
    ]
        .filter(([key], index) => line[key].some((value) => value > 0) || index === 1)
        .map(([key, name, color, dash]) => ({
            type: "scatter",
            mode: "lines",
            name,
            x,
            y: known(line[key], perSecond),
            line: { width: 1.5, color, dash },
            hovertemplate: "%{y:.3s}",
        }));
    chart.draw(traces, { xaxis: timeAxis(x), yaxis: axis({ rangemode: "tozero", tickformat: "~s", nticks: 5 }) });
}

/** Buffers that wait to be read, and those that wait at the producers. */
export function drawQueues(chart, timeline, line) {
    const colour = colours();
    const x = times(timeline);
    const traces = [
        ["backlog", "Backlog at producers", colour.back, "solid"],
        ["in_queued", "Queued at this vertex", colour.accent, "dot"],
    ].map(([key, name, color, dash]) => ({
        type: "scatter",
        mode: "lines",
        name,
        x,
        y: known(line[key], 1),
        line: { width: 1.5, color, dash },
        hovertemplate: "%{y:.0f} buffers",
    }));
    chart.draw(traces, { xaxis: timeAxis(x), yaxis: axis({ rangemode: "tozero", tickformat: "~s", nticks: 5 }) });
}

/** A colour scale whose lightness alone is unambiguous. */
export function heatScale() {
    const colour = colours();
    return [
        [0, colour["heat-0"]],
        [0.5, colour["heat-1"]],
        [1, colour["heat-2"]],
    ];
}

/** One row per line (a vertex or a subtask), time to the right, a share as shade. */
export function drawStrips(chart, timeline, lines, names, key) {
    const rows = lines.map((line) => known(line[key], 0.1));
    const height = Math.min(460, 60 + Math.max(2, lines.length) * (lines.length > 40 ? 4 : 18));
    chart.resize(height);
    const trace = {
        type: "heatmap",
        x: times(timeline),
        y: names.map((_, index) => index),
        z: rows,
        zmin: 0,
        zmax: 100,
        ygap: lines.length > 40 ? 0 : 1,
        colorscale: heatScale(),
        colorbar: { thickness: 10, ticksuffix: " %", outlinewidth: 0, tickfont: { color: colours().muted, size: 11 } },
        customdata: names.map((name) => Array(timeline.steps).fill(plain(name))),
        hovertemplate: "%{customdata}<br>%{x|%H:%M:%S}: %{z:.0f} %<extra></extra>",
    };
    const every = Math.ceil(names.length / 20);
    const ticks = names.map((_, index) => index).filter((index) => index % every === 0);
    chart.draw([trace], {
        xaxis: timeAxis(times(timeline)),
        height,
        hovermode: "closest",
        showlegend: false,
        margin: { l: Math.min(150, 18 + 7 * Math.max(...names.map((name) => name.length))), r: 8, t: 6, b: 24 },
        yaxis: axis({
            autorange: "reversed",
            showgrid: false,
            tickvals: ticks,
            ticktext: ticks.map((index) => plain(shorten(names[index], 22))),
        }),
    });
}

export function shorten(text, length) {
    return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}
