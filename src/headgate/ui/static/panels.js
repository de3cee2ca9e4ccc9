// Panels about the whole job: tables of vertices and edges, timelines, workers, settings, events.

import { Chart } from "./charts.js";
import { byteRate, bytes, capital, clock, count, h, mainState, millis, percent, rate, setText } from "./format.js";
import { drawStrips } from "./lines.js";
import { shareBar, writeBar } from "./parts.js";
import { wholeLine } from "./past.js";
import { choice, Table } from "./tables.js";
import { section, WINDOWS } from "./vertex.js";

/** All vertices and edges as tables: for screen readers, and for graphs with hundreds of vertices. */
export class ListPanel {
    #vertices;
    #edges;

    constructor(parent, select) {
        const chosen = (kind, name) => ({
            make: () => h("button", { type: "button", class: "link" }),
            paint: (button, row) => {
                setText(button, name(row));
                button.onclick = () => select({ kind, id: row.id });
            },
        });
        const number = (label, key, write, hint = null) => ({
            label,
            hint,
            numeric: true,
            value: (row) => row[key],
            text: (row) => write(row[key]),
        });
        this.#vertices = new Table(section(parent, "Vertices"), {
            caption: "Vertices",
            filter: "vertices",
            pageSize: 25,
            key: (row) => row.id,
            columns: [
                { label: "Vertex", value: (row) => row.name, ...chosen("vertex", (row) => row.name) },
                number("Tasks", "parallelism", count),
                { label: "Mostly", value: (row) => mainState(row).label },
                {
                    label: "Shares",
                    hint: "busy, waiting for coroutines (lined), back-pressured (striped), idle (pale)",
                    value: (row) => row.busy,
                    make: shareBar,
                    paint: writeBar,
                },
                number("Busy", "busy", percent),
                number("Most", "max_busy", percent, "busy: the busiest task"),
                number("Back-pressured", "back_pressured", percent),
                number("Idle", "idle", percent),
                number("In/s", "records_in_per_s", rate),
                number("Out/s", "records_out_per_s", rate),
                number("Bytes in/s", "bytes_in_per_s", byteRate),
                number("Bytes out/s", "bytes_out_per_s", byteRate),
                number("Watermark lag", "watermark_lag_ms", millis),
            ],
        });
        this.#edges = new Table(section(parent, "Edges"), {
            caption: "Edges",
            empty: "This job has no edges.",
            filter: "edges",
            pageSize: 25,
            key: (row) => row.id,
            columns: [
                { label: "Edge", value: (row) => row.name, ...chosen("edge", (row) => row.name) },
                { label: "Kind", value: (row) => row.ship },
                number("Records/s", "records_per_s", rate),
                number("Bytes/s", "bytes_per_s", byteRate),
                number("Backlog", "backlog", count, "buffers that wait at the producers"),
                number("Queued", "queued", count, "buffers that wait to be read"),
            ],
        });
    }

    update(view) {
        this.#vertices.update(view.progress.vertices);
        const name = new Map(view.graph.vertices.map((one) => [one.id, one.name]));
        const passing = new Map(view.edges.map((one) => [one.id, one]));
        this.#edges.update(
            view.graph.edges.map((one) => ({
                ...passing.get(one.id),
                ...one,
                name: `${name.get(one.producer)} → ${name.get(one.consumer)}`,
            })),
        );
    }
}

/** One strip per vertex: it shows bottlenecks that alternate. */
export class PastPanel {
    #chart;
    #key = "back_pressured";
    #last = null;

    constructor(parent, { seconds, changed }) {
        const options = [
            ["back_pressured", "Back-pressured"],
            ["busy", "Busy"],
            ["idle", "Idle"],
        ];
        const share = choice("Share", options, this.#key, (value) => {
            this.#key = value;
            this.redraw();
        });
        const part = section(parent, "Vertices over time");
        part.firstChild.append(
            h(
                "div",
                { class: "tools" },
                share,
                choice("Stretch", WINDOWS, String(seconds), (value) => changed(Number(value))),
            ),
        );
        this.#chart = new Chart(part, {
            label: "One row per vertex over time; each vertex has its time-lines as a table",
            height: 200,
        });
    }

    update(view, timeline) {
        if (timeline === null || timeline === this.#last?.[1]) return;
        this.#last = [view, timeline];
        this.redraw();
    }

    redraw() {
        if (this.#last === null) return;
        const [view, timeline] = this.#last;
        const found = view.graph.vertices
            .map((one) => [one.name, wholeLine(timeline, one.id)])
            .filter(([, line]) => line !== null);
        drawStrips(
            this.#chart,
            timeline,
            found.map(([, line]) => line),
            found.map(([name]) => name),
            this.#key,
        );
    }
}

export class WorkersPanel {
    #workers;
    #connections;

    constructor(parent) {
        const number = (label, key, write, hint = null) => ({
            label,
            hint,
            numeric: true,
            value: (row) => row[key],
            text: (row) => write(row[key]),
        });
        this.#workers = new Table(section(parent, "Workers"), {
            caption: "Workers of this job",
            key: (row) => row.number,
            sort: 0,
            columns: [
                { label: "Worker", numeric: true, value: (row) => row.number },
                { label: "Host", value: (row) => row.host || "–" },
                {
                    label: "Process",
                    numeric: true,
                    value: (row) => row.pid,
                    text: (row) => (row.pid === 0 ? "not there yet" : String(row.pid)),
                },
                number("Memory", "memory_bytes", bytes),
                number(
                    "CPUs",
                    "cpu",
                    (value) => (value === null ? "–" : value.toFixed(2)),
                    "CPUs that its process used: 1.00 is one, all of the time",
                ),
                {
                    label: "Network buffers",
                    hint: "in use, of all",
                    numeric: true,
                    value: (row) => row.segments_total - row.segments_free,
                    text: (row) => `${count(row.segments_total - row.segments_free)} of ${count(row.segments_total)}`,
                },
                number("Connections", "links", count),
                number("Sends", "sends", byteRate),
            ],
        });
        this.#connections = new Table(section(parent, "Connections"), {
            caption: "Connections between workers",
            empty: "No worker sends to another.",
            sort: 0,
            columns: [
                { label: "From", numeric: true, value: (row) => row.number },
                { label: "To", numeric: true, value: (row) => row.peer },
                number("Sends", "bytes_out_per_s", byteRate),
                number("So far", "bytes_out", bytes),
                number("Waiting", "waiting_bytes", bytes, "taken from partitions and not yet written"),
                number("Blocked", "blocked", percent, "share of the time in which the socket took nothing"),
                number("Round trip", "round_trip_ms", millis),
            ],
        });
    }

    /** `workers` have all their connections, which the view of a job leaves out if there are very many. */
    update(view, workers = null) {
        workers ??= view.progress.workers;
        this.#workers.update(
            workers.map((one) => ({
                ...one,
                links: one.connections.length,
                sends: one.connections.reduce((sum, link) => sum + link.bytes_out_per_s, 0),
            })),
        );
        this.#connections.update(
            workers.flatMap((one) => one.connections.map((link) => ({ ...link, number: one.number }))),
        );
    }
}

export class SettingsPanel {
    #table;

    constructor(parent) {
        this.#table = new Table(section(parent, "Settings"), {
            caption: "Settings that this job runs with",
            filter: "settings",
            pageSize: 100,
            sort: 0,
            key: (row) => row.key,
            columns: [
                { label: "Setting", value: (row) => row.key },
                { label: "Value", value: (row) => row.value },
                { label: "From", value: (row) => row.origin },
            ],
        });
    }

    update(view) {
        this.#table.update(view.settings);
    }
}

export class EventsPanel {
    #table;

    constructor(parent) {
        this.#table = new Table(section(parent, "Events"), {
            caption: "What happened to this job",
            filter: "events",
            pageSize: 50,
            sort: 0,
            descending: true,
            columns: [
                { label: "Time", value: (row) => row.order, text: (row) => clock(row.at_ms) },
                { label: "Level", value: (row) => row.level, text: (row) => capital(row.level) },
                { label: "Event", value: (row) => row.text },
            ],
        });
    }

    update(view) {
        this.#table.update(view.events.map((one, order) => ({ ...one, order })));
    }
}
