package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// params are the settings that a figure depends on; those that it does not depend on are 0.
type params struct {
	Clients      int `json:"clients,omitempty"`
	Consumers    int `json:"consumers,omitempty"`
	PayloadBytes int `json:"payloadBytes,omitempty"`
	Messages     int `json:"messages,omitempty"`
	Rate         int `json:"rate,omitempty"` // messages a second
	Dead         int `json:"dead,omitempty"`
	NewDead      int `json:"newDead,omitempty"`
	Backlog      int `json:"backlog,omitempty"`
	History      int `json:"history,omitempty"`
	Page         int `json:"page,omitempty"` // rows of an answer
	Seconds      int `json:"seconds,omitempty"`
}

func (p params) String() string {
	var parts []string
	add := func(n int, one, many string) {
		switch {
		case n == 1:
			parts = append(parts, "1 "+one)
		case n > 1:
			parts = append(parts, thousands(strconv.Itoa(n))+" "+many)
		}
	}
	add(p.Dead, "dead", "dead")
	add(p.NewDead, "new", "new")
	add(p.Backlog, "queued", "queued")
	add(p.History, "entry", "entries")
	add(p.Page, "a page", "a page")
	add(p.Clients, "client", "clients")
	add(p.Consumers, "consumer", "consumers")
	add(p.Messages, "message", "messages")
	add(p.Rate, "a second", "a second")
	add(p.PayloadBytes, "B", "B")
	add(p.Seconds, "s", "s")
	return strings.Join(parts, ", ")
}

// figure is one thing measured with one set of settings, once or several times.
type figure struct {
	Metric       string    `json:"metric"`
	Title        string    `json:"title"`
	Unit         string    `json:"unit"`
	HigherBetter bool      `json:"higherIsBetter"`
	Params       params    `json:"settings"`
	Values       []float64 `json:"values"`
	Min          float64   `json:"min"`
	Median       float64   `json:"median"`
	Max          float64   `json:"max"`
	Peer         *peerView `json:"peer,omitempty"`
}

// check is one thing that had to be so.
type check struct {
	Scenario string `json:"scenario"`
	What     string `json:"what"`
	Want     int64  `json:"want"`
	Got      int64  `json:"got"`
	OK       bool   `json:"ok"`
}

// report collects what the scenarios find.
type report struct {
	Date      time.Time `json:"date"`
	GoVersion string    `json:"goVersion"`
	Platform  string    `json:"platform"`
	Cores     int       `json:"cores"`
	Database  database  `json:"database"`
	Settings  settings  `json:"settings"`
	PeerLabel string    `json:"peerLabel"`
	Figures   []*figure `json:"figures"`
	Checks    []check   `json:"checks"`
	Notes     []string  `json:"notes,omitempty"`
}

func newReport(set settings) *report {
	return &report{
		Date: time.Now().UTC().Truncate(time.Second), GoVersion: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(),
		Settings: set, PeerLabel: peerLabel,
	}
}

// record adds a measured value to the figure of metric and params.
func (r *report) record(metric string, p params, value float64) {
	f := r.figure(metric, p)
	f.Values = append(f.Values, value)
	f.Min, f.Median, f.Max = spread(f.Values)
	f.Peer = peerOf(metric, p, f.HigherBetter, f.Median)
}

func (r *report) figure(metric string, p params) *figure {
	for _, f := range r.Figures {
		if f.Metric == metric && f.Params == p {
			return f
		}
	}
	m := metrics[metric]
	f := &figure{Metric: metric, Title: m.title, Unit: m.unit, HigherBetter: m.higherBetter, Params: p}
	r.Figures = append(r.Figures, f)
	return f
}

// expect records a count and what it had to be.
func (r *report) expect(scenario, what string, want, got int64) {
	r.Checks = append(r.Checks, check{Scenario: scenario, What: what, Want: want, Got: got, OK: want == got})
}

// note adds a remark for the reader, which is not a failure.
func (r *report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// right says whether every check held.
func (r *report) right() bool {
	for _, c := range r.Checks {
		if !c.OK {
			return false
		}
	}
	return true
}

func (r *report) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

func (r *report) saveJSON(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := r.writeJSON(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// writeTable prints what a person reads.
func (r *report) writeTable(w io.Writer) error {
	var b strings.Builder
	durable := "durable commits"
	if !r.Database.Durable {
		durable = "COMMITS ARE NOT DURABLE"
	}
	fmt.Fprintf(&b, "Redrive, %s, size %s, %d run(s) each: %s %s (%s), %d cores, %s %s\n\n",
		r.Date.Format(time.RFC3339), r.Settings.Size, r.Settings.Repeat,
		r.Database.Flavour, r.Database.Version, durable, r.Cores, r.GoVersion, r.Platform)

	rows := [][]string{{"measured", "with", "least", "median", "most", "unit", "peer*", "ratio"}}
	for _, f := range r.Figures {
		row := []string{f.Title, f.Params.String(), number(f.Min), number(f.Median), number(f.Max), f.Unit, "", ""}
		if f.Peer != nil {
			row[6], row[7] = f.Peer.Shown, f.Peer.ratio()
		}
		rows = append(rows, row)
	}
	align(&b, rows, "llrrrlrr")
	fmt.Fprintf(&b, "\n* %s; ratio: how many times better Redrive is, below 1 it is worse.\n", peerLabel)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "Note: %s\n", n)
	}
	r.writeChecks(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *report) writeChecks(b *strings.Builder) {
	wrong := 0
	for _, c := range r.Checks {
		if !c.OK {
			wrong++
			b.WriteString(strings.ToUpper(fmt.Sprintf("wrong: %s: %s is %d, must be %d\n", c.Scenario, c.What, c.Got, c.Want)))
		}
	}
	if wrong == 0 {
		fmt.Fprintf(b, "All %d checks held.\n", len(r.Checks))
		return
	}
	fmt.Fprintf(b, "%d OF %d CHECKS FAILED.\n", wrong, len(r.Checks))
}

// align writes rows in columns; kinds has l or r, for left or right, a column.
func align(b *strings.Builder, rows [][]string, kinds string) {
	width := make([]int, len(kinds))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if kinds[i] == 'r' {
				line.WriteString(pad + cell + "  ")
			} else {
				line.WriteString(cell + pad + "  ")
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

// number renders a value with about three digits that matter.
func number(v float64) string {
	decimals := 3
	switch a := max(v, -v); {
	case a >= 100:
		decimals = 0
	case a >= 10:
		decimals = 1
	case a >= 1:
		decimals = 2
	}
	return thousands(strconv.FormatFloat(v, 'f', decimals, 64))
}

// thousands puts commas into the digits before the point.
func thousands(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	whole, fraction, found := strings.Cut(s, ".")
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if found {
		whole += "." + fraction
	}
	return sign + whole
}
