// The details of an edge: the credit and backlog of all its channels as a matrix, and its hot keys.

import { axis, Chart, colours } from "./charts.js";
import { byteRate, bytes, count, h, percent, rate, setText } from "./format.js";
import { heatScale } from "./lines.js";
import { choice, figures, Table } from "./tables.js";
import { section } from "./vertex.js";

const MEASURES = {
    credit: [
        "Credit",
        (channel) => (channel.local ? null : channel.credit),
        "buffers that the producer may still send",
    ],
    backlog: ["Backlog", (channel) => channel.backlog, "buffers that wait at the producer"],
    queued: ["Queued", (channel) => channel.queued, "buffers that have come and wait to be read"],
    bytes: ["Bytes", (channel) => channel.bytes_in, "bytes so far"],
};
const FIGURES_WITHIN = 16; // larger matrices have no figures in their cells

export class EdgePanel {
    #write;
    #measure = "credit";
    #shape = "matrix";
    #chart;
    #table;
    #parts;
    #note;
    #keys;
    #keysPart;
    #last = null;
    id;

    constructor(parent, { edge, graph, select }) {
        this.id = edge.id;
        const end = (id) => graph.vertices.find((one) => one.id === id);
        const [producer, consumer] = [end(edge.producer), end(edge.consumer)];
        const [list, write] = figures([
            ["Records", "records"],
            ["Bytes", "bytes"],
            ["Backlog", "backlog", "buffers that wait at the producers"],
            ["Queued", "queued", "buffers that wait to be read"],
            ["Channels", "channels"],
            ["Without credit", "starved", "channels between workers whose producer may send nothing now"],
            ["Uneven", "uneven", "bytes of the consumer that got most, beside the mean"],
        ]);
        this.#write = write;
        const link = (vertex) =>
            h(
                "button",
                { type: "button", class: "link", onclick: () => select({ kind: "vertex", id: vertex.id }) },
                vertex.name,
            );
        const tag = edge.tag === null ? "" : `, side output ${edge.tag}`;
        parent.replaceChildren(
            h(
                "header",
                { class: "panel-head" },
                h("h2", { tabindex: -1 }, `${producer.name} → ${consumer.name}`),
                h("p", { class: "muted" }, `edge ${edge.id}, ${edge.ship}${tag}`),
            ),
            h("p", { class: "chain" }, "From ", link(producer), " to ", link(consumer)),
            list,
        );
        this.#channels(section(parent, "Channels"));
        this.#keysPart = section(parent, "Hot keys");
        this.#keys = new Table(this.#keysPart, {
            caption: "Keys with many of this edge's records",
            empty: "No key has 5 % of the records or more.",
            pageSize: 10,
            columns: [
                { label: "Key", value: (row) => row.key },
                {
                    label: "Share of records",
                    hint: "an estimate, by the producers",
                    numeric: true,
                    value: (row) => row.share,
                    text: (row) => percent(row.share),
                },
            ],
        });
    }

    #channels(part) {
        const measures = choice(
            "Figure",
            Object.entries(MEASURES).map(([key, [label]]) => [key, label]),
            this.#measure,
            (value) => {
                this.#measure = value;
                this.redraw();
            },
        );
        const shapes = choice(
            "As",
            [
                ["matrix", "Matrix"],
                ["table", "Table"],
            ],
            this.#shape,
            (value) => {
                this.#shape = value;
                this.redraw();
            },
        );
        this.#note = h("p", { class: "muted" });
        const [matrix, table] = [h("div"), h("div", { hidden: true })];
        this.#parts = { matrix, table };
        part.firstChild.append(h("div", { class: "tools" }, measures, shapes));
        part.append(this.#note, matrix, table);
        this.#chart = new Chart(matrix, { label: "Matrix of channels; choose Table for its figures", height: 200 });
        this.#table = new Table(table, {
            caption: "Channels of this edge",
            key: (row) => `${row.producer}-${row.consumer}`,
            sort: 3,
            descending: true,
            columns: [
                { label: "Consumer", numeric: true, value: (row) => row.consumer },
                { label: "Producer", numeric: true, value: (row) => row.producer },
                { label: "Place", value: (row) => (row.local ? "one worker" : "network") },
                { label: "Backlog", numeric: true, value: (row) => row.backlog },
                { label: "Queued", numeric: true, value: (row) => row.queued },
                { label: "Credit", numeric: true, value: (row) => (row.local ? null : row.credit) },
                {
                    label: "Exclusive",
                    hint: "buffers of its own that are set aside for what comes",
                    numeric: true,
                    value: (row) => row.exclusive,
                },
                {
                    label: "Floating",
                    hint: "likewise of those that the gate's channels share",
                    numeric: true,
                    value: (row) => row.floating,
                },
                { label: "Bytes", numeric: true, value: (row) => row.bytes_in, text: (row) => bytes(row.bytes_in) },
            ],
        });
    }

    /** `passing` is the edge in the job's view, `detail` its channels, `producer` the vertex with its hot keys. */
    update(passing, detail, producer) {
        const fresh = detail !== null && detail !== this.#last;
        this.#last = detail ?? this.#last;
        const channels = this.#last?.channels ?? [];
        const remote = channels.filter((one) => !one.local);
        this.#write({
            records: rate(passing?.records_per_s),
            bytes: byteRate(passing?.bytes_per_s),
            backlog: count(passing?.backlog),
            queued: count(passing?.queued),
            channels:
                channels.length === remote.length
                    ? count(channels.length)
                    : `${count(channels.length)}, ${count(channels.length - remote.length)} local`,
            starved: remote.length === 0 ? "–" : count(remote.filter((one) => one.credit === 0).length),
            uneven: uneven(this.#last),
        });
        const keys = (producer?.hot_keys ?? []).filter((one) => one.exchange === this.id);
        this.#keys.update(keys);
        if (fresh) this.redraw();
    }

    redraw() {
        if (this.#last === null) return;
        for (const [shape, part] of Object.entries(this.#parts)) part.hidden = shape !== this.#shape;
        const [label, , hint] = MEASURES[this.#measure];
        const { channels, producers, consumers } = this.#last;
        const local = channels.filter((one) => one.local).length;
        const missing =
            this.#measure === "credit" && local > 0
                ? ` ${local} of ${channels.length} channels are within one worker, and need no credit.`
                : "";
        setText(this.#note, `${label}: ${hint}.${missing}`);
        if (this.#shape === "table") this.#table.update(channels);
        else this.#drawMatrix(channels, producers, consumers);
    }

    #drawMatrix(channels, producers, consumers) {
        const [label, value] = MEASURES[this.#measure];
        const cells = Array.from({ length: producers }, () => Array(consumers).fill(null));
        for (const channel of channels) {
            if (channel.producer < producers && channel.consumer < consumers)
                cells[channel.producer][channel.consumer] = value(channel);
        }
        const small = producers <= FIGURES_WITHIN && consumers <= FIGURES_WITHIN;
        const most = Math.max(1, ...cells.map((row) => Math.max(0, ...row.map((one) => one ?? 0))));
        const write = this.#measure === "bytes" ? bytes : count;
        const trace = {
            type: "heatmap",
            z: cells,
            x: Array.from({ length: consumers }, (_, index) => index),
            y: Array.from({ length: producers }, (_, index) => index),
            zmin: 0,
            zmax: most,
            xgap: small ? 2 : 0,
            ygap: small ? 2 : 0,
            colorscale: heatScale(),
            colorbar: {
                thickness: 10,
                outlinewidth: 0,
                tickformat: "~s",
                dtick: most < 8 ? 1 : undefined,
                tickfont: { color: colours().muted, size: 11 },
            },
            text: small ? cells.map((row) => row.map((one) => (one === null ? "" : write(one)))) : undefined,
            texttemplate: small ? "%{text}" : undefined,
            hoverongaps: false,
            hovertemplate: `producer %{y} to consumer %{x}<br>${label}: %{z:,}<extra></extra>`,
        };
        // Channels within a worker have no credit: their cells show that if there is room.
        const alone = small && this.#measure === "credit" ? channels.filter((one) => one.local) : [];
        const words = {
            type: "scatter",
            mode: "text",
            x: alone.map((one) => one.consumer),
            y: alone.map((one) => one.producer),
            text: alone.map(() => "local"),
            hoverinfo: "skip",
        };
        const height = Math.min(560, Math.max(150, 70 + producers * (small ? 30 : 6)));
        this.#chart.resize(height, small ? 160 + consumers * 76 : null);
        this.#chart.draw([trace, words], {
            height,
            showlegend: false,
            hovermode: "closest",
            margin: { l: 60, r: 8, t: 6, b: 40 },
            plot_bgcolor: colours().sunken,
            xaxis: axis({ title: { text: "consumer subtask" }, showgrid: false, tickformat: "d", ...ticks(consumers) }),
            yaxis: axis({
                title: { text: "producer subtask" },
                showgrid: false,
                autorange: "reversed",
                tickformat: "d",
                ...ticks(producers),
            }),
        });
    }

    remove() {
        this.#chart.remove();
    }
}

function ticks(many) {
    return many <= 20 ? { dtick: 1 } : { nticks: 12 };
}

function uneven(detail) {
    if (detail === null || detail.consumers < 2) return "–";
    const sums = Array(detail.consumers).fill(0);
    for (const channel of detail.channels) sums[channel.consumer] += channel.bytes_in;
    const mean = sums.reduce((all, one) => all + one, 0) / sums.length;
    if (mean === 0) return "–";
    const most = Math.max(...sums);
    return `${(most / mean).toFixed(1)} × mean (subtask ${sums.indexOf(most)})`;
}
