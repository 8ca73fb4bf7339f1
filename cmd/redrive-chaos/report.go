//go:build unix

package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

const (
	shownViolations = 4  // of each check
	shownEvents     = 14 // of the history of each violation
)

// report prints what happened and what was found; errViolations if there is anything to complain of.
func report(out io.Writer, h *history, results []result, cfg config) error {
	summary(out, h)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "cases\tviolations\t  check")
	bad := 0
	for _, r := range results {
		fmt.Fprintf(w, "%d\t%d\t  %s\n", r.Cases, len(r.Violations), r.Name)
		bad += len(r.Violations)
	}
	w.Flush()
	if bad == 0 {
		fmt.Fprintf(out, "\nno violations (seed %d)\n", h.Info.Seed)
		return nil
	}
	for _, r := range results {
		for n, v := range r.Violations {
			if n == shownViolations {
				fmt.Fprintf(out, "  ... and %d more\n", len(r.Violations)-n)
				break
			}
			if n == 0 {
				fmt.Fprintf(out, "\n%s:\n", r.Name)
			}
			fmt.Fprintf(out, "- %s\n", v.What)
			for _, l := range related(h, v) {
				fmt.Fprintf(out, "      %s\n", l)
			}
		}
	}
	fmt.Fprintf(out, "\n%d violations (seed %d)\n", bad, h.Info.Seed)
	if cfg.History != "" {
		fmt.Fprintf(out, "the whole history is in %s; --check judges it again\n", cfg.History)
	}
	return fmt.Errorf("%w: %d violations, seed %d", errViolations, bad, h.Info.Seed)
}

func failed(results []result) bool {
	return slices.ContainsFunc(results, func(r result) bool { return len(r.Violations) > 0 })
}

// summary counts what was done.
func summary(out io.Writer, h *history) {
	ops, outcomes, faults, answers := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	for _, o := range h.Ops {
		ops[o.Kind]++
		outcomes[o.Kind+" "+string(o.Outcome)]++
	}
	for _, f := range h.Faults {
		faults[f.Kind]++
	}
	for _, r := range h.Receipts {
		answers[fmt.Sprintf("%s %d", r.Consumer, r.Answer)]++
	}
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, k := range sortedKeys(ops) {
		fmt.Fprintf(w, "%s\t%d\tok %d, refused %d, unknown %d\n", k, ops[k], outcomes[k+" ok"], outcomes[k+" refused"], outcomes[k+" unknown"])
	}
	for _, k := range sortedKeys(answers) {
		fmt.Fprintf(w, "receipt %s\t%d\t\n", k, answers[k])
	}
	for _, k := range sortedKeys(faults) {
		fmt.Fprintf(w, "fault %s\t%d\t\n", k, faults[k])
	}
	fmt.Fprintf(w, "retries of dead letters that took effect\t%d\tothers answered that one had: %d\n", retries(h, true), retries(h, false))
	fmt.Fprintf(w, "snapshots\t%d\t\n", len(h.Snapshots))
	fmt.Fprintf(w, "delivered after a 503\t%d\tcommitted as the answer was lost: allowed, known to repeat\n", unavailableYetDelivered(h))
	summaryOfEngines(w, h)
	w.Flush()
	fmt.Fprintln(out)
}

// summaryOfEngines counts what the endpoint did, and what the engines' messages have come to.
func summaryOfEngines(w io.Writer, h *history) {
	fates, repeated := map[string]int{}, 0
	messages := map[work]map[string]bool{}
	for _, o := range h.Ops {
		if o.Work != nil && o.Outcome == ok {
			if messages[*o.Work] == nil {
				messages[*o.Work] = map[string]bool{}
			}
			messages[*o.Work][o.Message] = true
		}
	}
	several := 0
	for _, m := range messages {
		several += min(1, len(m)-1)
	}
	for _, r := range h.Runs {
		fates[r.Work.Engine+" "+r.Fate]++
		if len(r.Posts) > 1 && r.Fate != fateCut { // an HTTP client may repeat a request whose connection was cut
			repeated++
		}
	}
	for _, k := range sortedKeys(fates) {
		fmt.Fprintf(w, "run %s\t%d\t\n", k, fates[k])
	}
	fmt.Fprintf(w, "runs with a repeated POST\t%d\ttaken up by another instance, or by the same after its restart\n", repeated)
	fmt.Fprintf(w, "works of engines\t%d\tasked for by several messages: %d\n", len(messages), several)
	for _, at := range h.Rests {
		statuses := map[string]int{}
		for _, j := range at.Engines {
			statuses[fmt.Sprintf("%s %d", j.Consumer, j.Status)]++
		}
		for _, k := range sortedKeys(statuses) {
			fmt.Fprintf(w, "%s: jobs of %s\t%d\t\n", at.Label, k, statuses[k])
		}
	}
}

func retries(h *history, tookEffect bool) int {
	n := 0
	for _, o := range h.Ops {
		if o.Retry != nil && o.Retry.Retried == tookEffect {
			n++
		}
	}
	return n
}

// unavailableYetDelivered counts messages whose every attempt was answered 503 and that were delivered all the same.
func unavailableYetDelivered(h *history) int {
	only := map[string]bool{} // by tag
	for _, o := range h.Ops {
		if o.Kind == opBroadcast {
			before, seen := only[o.Tag]
			only[o.Tag] = o.Status == 503 && (before || !seen)
		}
	}
	n := 0
	for _, r := range h.Receipts {
		if only[r.Tag] {
			n++
			only[r.Tag] = false
		}
	}
	return n
}

type event struct {
	at   moment
	text string
}

// related are the events of the history that belong to a violation: all of its message, else what was done and
// broken at its consumer around its time.
func related(h *history, v violation) []string {
	events := ofMessage(h, v)
	if len(events) == 0 && v.At == 0 {
		return nil
	}
	from, to := v.At-around, v.At+around
	if len(events) > 0 {
		slices.SortStableFunc(events, byTime)
		from, to = events[0].at-around, events[0].at+15*around/2
	}
	for _, o := range h.Ops {
		if (o.Kind == opRequeueAll || o.Kind == opPurgeAll) && (v.Consumer == "" || o.Consumer == v.Consumer) && o.Start <= to && o.End >= from {
			events = append(events, opEvent(o))
		}
	}
	for _, f := range h.Faults {
		if f.overlaps(from, to) && (f.Kind != faultConsumer || f.Target == v.Consumer) {
			events = append(events, event{f.Start, fmt.Sprintf("fault %s %s %s: down %s, up %s, over %s", f.Kind, f.Target, f.What, f.Down, f.Up, f.End)})
		}
	}
	return eventLines(events)
}

const around = moment(2_000_000)

func opEvent(o op) event {
	return event{o.Start, fmt.Sprintf("op %d %s %s %s on %d until %s: %d %s %s", o.Seq, o.Kind, o.Consumer, o.State+o.Letter, o.Instance, o.End, o.Status, o.Outcome, o.Err)}
}

func ofMessage(h *history, v violation) []event {
	if v.Message == "" {
		return nil
	}
	var events []event
	mine := func(consumer string) bool { return v.Consumer == "" || consumer == "" || consumer == v.Consumer }
	for _, o := range h.Ops {
		if o.Message == v.Message && mine(o.Consumer) {
			events = append(events, opEvent(o))
		}
	}
	for _, r := range h.Receipts {
		if r.Message == v.Message && mine(r.Consumer) {
			events = append(events, event{r.Start, fmt.Sprintf("receipt %d of %s until %s: %d gone=%t", r.Seq, r.Consumer, r.End, r.Answer, r.Gone)})
		}
	}
	for _, r := range h.Runs {
		if r.Work.message() == v.Message {
			events = append(events, event{r.Begin, fmt.Sprintf("run %s of the %s until %s: %s, %d POSTs, %d looks", r.Run, r.Work, r.last(), r.Fate, len(r.Posts), len(r.Polls))})
		}
	}
	for _, j := range h.Jobs {
		if j.Message == v.Message && mine(j.Consumer) {
			events = append(events, event{inTheEnd, fmt.Sprintf("job %s of %s ends with status %d, %d retries", j.Job, j.Consumer, j.Status, j.Retries)})
		}
	}
	return events
}

const inTheEnd = moment(1 << 61)

func eventLines(events []event) []string {
	slices.SortStableFunc(events, byTime)
	var out []string
	for n, e := range events {
		if n == shownEvents {
			return append(out, fmt.Sprintf("... and %d more events", len(events)-n))
		}
		if e.at != inTheEnd {
			out = append(out, fmt.Sprintf("%9s %s", e.at, e.text))
		} else {
			out = append(out, fmt.Sprintf("%9s %s", "in the end", e.text))
		}
	}
	return out
}

func byTime(a, b event) int { return cmp.Compare(a.at, b.at) }
