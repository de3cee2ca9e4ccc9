// The details of a vertex: figures, timelines, subtasks, latency and stacks. Created for each selected vertex, and updated
// once a second.

import { Chart, Figures } from "./charts.js";
import { Flame } from "./flame.js";
import { byteRate, capital, clock, count, duration, h, millis, percent, rate } from "./format.js";
import { drawQueues, drawRates, drawShares, drawStrips } from "./lines.js";
import { shareBar, writeBar } from "./parts.js";
import { secondsOf, wholeLine } from "./past.js";
import { choice, figures, Table } from "./tables.js";

export const WINDOWS = [
    ["60", "1 min"],
    ["180", "3 min"],
    ["600", "10 min"],
];

const FIGURES = [
    ["State", "state"],
    ["Busy", "busy", "share of the time, mean of its subtasks; and that of the busiest"],
    ["Back-pressured", "back", "share of the time that it waited for an output buffer; and that of the worst subtask"],
    ["Idle", "idle", "share of the time that it waited for input"],
    ["Waiting", "waiting", "share of the time that it waited for coroutines of map_async"],
    ["Records in", "in"],
    ["Records out", "out"],
    ["Bytes in", "bytesIn"],
    ["Bytes out", "bytesOut"],
    ["Records so far", "total", "in and out"],
    ["Watermark lag", "lag", "how far the slowest watermark is behind the clock"],
];

const SUBTASKS = [
    { label: "Subtask", numeric: true, value: (row) => row.subtask },
    { label: "Worker", numeric: true, value: (row) => row.worker },
    { label: "State", value: (row) => row.state, text: (row) => capital(row.state) },
    {
        label: "Shares",
        hint: "busy, waiting for coroutines (lined), back-pressured (striped), idle (pale)",
        value: (row) => row.busy,
        make: shareBar,
        paint: writeBar,
    },
    share("Busy", "busy"),
    share("Back-pressured", "back_pressured"),
    share("Idle", "idle"),
    share("Waiting", "waiting"),
    {
        label: "CPU",
        hint: "share of the time that its thread was on a CPU",
        numeric: true,
        value: (row) => row.cpu,
        text: (row) => percent(row.cpu),
    },
    { label: "In/s", numeric: true, value: (row) => row.records_in_per_s, text: (row) => rate(row.records_in_per_s) },
    {
        label: "Out/s",
        numeric: true,
        value: (row) => row.records_out_per_s,
        text: (row) => rate(row.records_out_per_s),
    },
    {
        label: "Bytes in/s",
        numeric: true,
        value: (row) => row.bytes_in_per_s,
        text: (row) => byteRate(row.bytes_in_per_s),
    },
    {
        label: "Bytes out/s",
        numeric: true,
        value: (row) => row.bytes_out_per_s,
        text: (row) => byteRate(row.bytes_out_per_s),
    },
    {
        label: "Backlog",
        hint: "buffers that wait at its producers",
        numeric: true,
        value: (row) => row.backlog,
        text: (row) => count(row.backlog),
    },
    {
        label: "Queued",
        hint: "buffers that wait to be read",
        numeric: true,
        value: (row) => row.in_queued,
        text: (row) => count(row.in_queued),
    },
    share("In pool", "in_pool_usage", "share of its gates' buffers that are in use"),
    share("Out pool", "out_pool_usage", "share of its partitions' buffers that are in use"),
    {
        label: "Watermark lag",
        numeric: true,
        value: (row) => row.watermark_lag_ms,
        text: (row) => millis(row.watermark_lag_ms),
    },
];

const OPERATORS = [
    { label: "Operator", hint: "in the order of the chain", value: (row) => row.position, text: (row) => row.name },
    {
        label: "Records in/s",
        numeric: true,
        value: (row) => row.records_in_per_s,
        text: (row) => rate(row.records_in_per_s),
    },
    {
        label: "Records out/s",
        numeric: true,
        value: (row) => row.records_out_per_s,
        text: (row) => rate(row.records_out_per_s),
    },
    { label: "In so far", numeric: true, value: (row) => row.records_in, text: (row) => count(row.records_in) },
    {
        label: "Out so far",
        hint: "of the main output",
        numeric: true,
        value: (row) => row.records_out,
        text: (row) => count(row.records_out),
    },
    {
        label: "Side outputs",
        hint: "records so far, by tag",
        value: (row) => row.sides,
        text: (row) => row.sides || "–",
    },
];

function share(label, key, hint = null) {
    return { label, hint, numeric: true, value: (row) => row[key], text: (row) => percent(row[key]) };
}

export class VertexPanel {
    #write;
    #charts;
    #strips = null;
    #stripKey = "busy";
    #past;
    #operators;
    #operatorsPart;
    #chain;
    #subtasks;
    #latency;
    #latencyPart;
    #counters;
    #countersPart;
    #timeline = null;
    #names;
    flame;
    id;

    /** `changed` is called when the reader selects another period. */
    constructor(parent, { place, graph, seconds, changed, ask }) {
        this.id = place.id;
        this.#chain = place.operators;
        this.#names = new Map(graph.vertices.map((one) => [one.id, one.name]));
        const [list, write] = figures(FIGURES);
        this.#write = write;
        const kind = [
            place.source ? "source" : null,
            place.sink ? "sink" : null,
            place.in_driver ? "in the driver" : null,
        ];
        const about = [`vertex ${place.id}`, `parallelism ${place.parallelism}`, ...kind.filter(Boolean)].join(", ");
        parent.replaceChildren(
            h(
                "header",
                { class: "panel-head" },
                h("h2", { tabindex: -1 }, place.name),
                h("p", { class: "muted" }, about),
            ),
            h(
                "p",
                { class: "chain", hidden: place.operators.length < 2 },
                ...place.operators.flatMap((one, index) => [...(index ? [" → "] : []), h("code", {}, one)]),
            ),
            list,
        );
        this.#operatorsPart = section(parent, "Operators");
        this.#operators = new Table(this.#operatorsPart, {
            caption: `Operators of ${place.name}`,
            columns: OPERATORS,
            key: (row) => `operator-${row.position}`,
            sort: 0,
            pageSize: 20,
        });
        this.#timelines(parent, place, seconds, changed);
        this.#subtasks = new Table(section(parent, "Subtasks"), {
            caption: `Subtasks of ${place.name}`,
            columns: SUBTASKS,
            key: (row) => row.subtask,
            sort: 0,
            pageSize: 20,
        });
        const pair = h("div", { class: "pair" });
        parent.append(pair);
        this.#latencyPart = section(pair, "Latency from sources");
        this.#latency = new Table(this.#latencyPart, {
            caption: "Latency of markers, last minute",
            columns: [
                {
                    label: "From",
                    value: (row) => row.source,
                    text: (row) => this.#names.get(row.source) ?? `vertex ${row.source}`,
                },
                { label: "Median", numeric: true, value: (row) => row.p50_ms, text: (row) => millis(row.p50_ms) },
                {
                    label: "99th percentile",
                    numeric: true,
                    value: (row) => row.p99_ms,
                    text: (row) => millis(row.p99_ms),
                },
                { label: "Greatest", numeric: true, value: (row) => row.max_ms, text: (row) => millis(row.max_ms) },
                { label: "Markers", numeric: true, value: (row) => row.count, text: (row) => count(row.count) },
            ],
        });
        this.#countersPart = section(pair, "Counters");
        this.#counters = new Table(this.#countersPart, {
            caption: "Counters of this vertex's functions",
            columns: [
                { label: "Counter", value: (row) => row[0] },
                { label: "Sum", numeric: true, value: (row) => row[1], text: (row) => count(row[1]) },
            ],
        });
        this.flame = new Flame(section(parent, "Where the time goes"), { vertex: place.id, name: place.name, ask });
    }

    #timelines(parent, place, seconds, changed) {
        const part = section(parent, "Time-lines");
        part.firstChild.append(choice("Stretch", WINDOWS, String(seconds), (value) => changed(Number(value))));
        const grid = h("div", { class: "charts" });
        part.append(grid);
        const chart = (title, label) => {
            const cell = h("figure", {}, h("figcaption", {}, title));
            grid.append(cell);
            return new Chart(cell, { label, height: 190 });
        };
        this.#charts = [
            [
                drawShares,
                chart(
                    "Busy, back-pressured, idle",
                    "Busy, back-pressured and idle time as stacked areas; the table below has the figures",
                ),
            ],
            [drawRates, chart("Records", "Records in and out per second; the table below has the figures")],
        ];
        if (!place.source)
            this.#charts.push([
                drawQueues,
                chart("Buffers that wait", "Backlog and queue; the table below has the figures"),
            ]);
        if (place.parallelism > 1) {
            const options = [
                ["busy", "Busy"],
                ["back_pressured", "Back-pressured"],
                ["idle", "Idle"],
            ];
            const share = choice("Share", options, this.#stripKey, (value) => {
                this.#stripKey = value;
                this.#drawStrips();
            });
            const cell = h("figure", {}, h("figcaption", { class: "section-head" }, "Subtasks", share));
            grid.append(cell);
            this.#strips = new Chart(cell, {
                label: "One row per subtask over time; the table of subtasks has the present figures",
                height: 120,
            });
        }
        this.#past = new Figures(part, "Time-lines as a table", timelineTable(`Past of ${place.name}`));
    }

    update(progress, detail) {
        const subtasks = detail?.subtasks ?? [];
        this.#write({
            state: capital(progress.state),
            busy: `${percent(progress.busy)}, most ${percent(progress.max_busy)}`,
            back: `${percent(progress.back_pressured)}, most ${percent(progress.max_back_pressured)}`,
            idle: percent(progress.idle),
            waiting: percent(progress.waiting ?? 0),
            in: rate(progress.records_in_per_s),
            out: rate(progress.records_out_per_s),
            bytesIn: byteRate(progress.bytes_in_per_s),
            bytesOut: byteRate(progress.bytes_out_per_s),
            total: `${count(progress.records_in)} in, ${count(progress.records_out)} out`,
            lag: progress.watermark_lag_ms === null ? "no watermarks" : duration(progress.watermark_lag_ms / 1000),
        });
        this.#operatorsPart.hidden = progress.operators.length === 0;
        this.#operators.update(progress.operators.map((one, position) => operatorRow(one, position, this.#chain)));
        this.#subtasks.update(subtasks);
        this.#latencyPart.hidden = progress.latencies.length === 0;
        this.#latency.update(progress.latencies);
        const counters = Object.entries(progress.counters);
        this.#countersPart.hidden = counters.length === 0;
        this.#counters.update(counters);
    }

    updatePast(timeline) {
        if (timeline === null || timeline === this.#timeline) return;
        this.#timeline = timeline;
        this.redraw();
    }

    redraw() {
        if (this.#timeline === null) return;
        const line = wholeLine(this.#timeline, this.id);
        if (line === null) return;
        for (const [draw, chart] of this.#charts) draw(chart, this.#timeline, line);
        this.#drawStrips();
        this.#past.update(() => secondsOf(this.#timeline, line));
    }

    #drawStrips() {
        if (this.#strips === null || this.#timeline === null) return;
        const lines = this.#timeline.tasks.filter((one) => one.vertex === this.id && one.subtask >= 0);
        const names = lines.map((one) => `subtask ${one.subtask}`);
        drawStrips(this.#strips, this.#timeline, lines, names, this.#stripKey);
    }

    remove() {
        for (const [, chart] of this.#charts) chart.remove();
        this.#strips?.remove();
    }
}

function operatorRow(one, position, chain) {
    const sides = Object.entries(one.side_outputs).map(([tag, records]) => `${tag}: ${count(records)}`);
    return { ...one, position, name: chain[position] ?? `operator ${position}`, sides: sides.join(", ") };
}

export function section(parent, title) {
    const part = h("section", {}, h("div", { class: "section-head" }, h("h3", {}, title)));
    parent.append(part);
    return part;
}

function timelineTable(caption) {
    const column = (label, key, text) => ({
        label,
        numeric: true,
        value: (row) => row[key],
        text: (row) => text(row[key]),
    });
    return {
        caption,
        sort: 0,
        descending: true,
        pageSize: 15,
        columns: [
            { label: "Time", value: (row) => row.at, text: (row) => clock(row.at) },
            column("Busy", "busy", percent),
            column("Back-pressured", "back_pressured", percent),
            column("Idle", "idle", percent),
            column("Records in/s", "records_in", rate),
            column("Records out/s", "records_out", rate),
            column("Backlog", "backlog", count),
            column("Queued", "in_queued", count),
        ],
    };
}
