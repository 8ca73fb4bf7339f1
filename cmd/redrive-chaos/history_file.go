//go:build unix

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// line is one line of a history file: exactly one field is set.
type line struct {
	Run      *runInfo      `json:"run,omitempty"`
	Op       *op           `json:"op,omitempty"`
	Receipt  *receipt      `json:"receipt,omitempty"`
	Fault    *fault        `json:"fault,omitempty"`
	Snapshot *snapshot     `json:"snapshot,omitempty"`
	Sighting *sighting     `json:"sighting,omitempty"`
	Incident *incident     `json:"incident,omitempty"`
	Starts   *int          `json:"starts,omitempty"`
	Job      *finalJob     `json:"job,omitempty"`
	Message  *finalMessage `json:"message,omitempty"`
	Letter   *finalLetter  `json:"letter,omitempty"`
	Rest     *rest         `json:"rest,omitempty"`
	Engine   *engineRun    `json:"engineRun,omitempty"`
}

func (h *history) lines(emit func(line)) {
	emit(line{Run: &h.Info})
	emit(line{Starts: &h.Starts})
	each(h.Ops, func(v *op) { emit(line{Op: v}) })
	each(h.Receipts, func(v *receipt) { emit(line{Receipt: v}) })
	each(h.Faults, func(v *fault) { emit(line{Fault: v}) })
	each(h.Snapshots, func(v *snapshot) { emit(line{Snapshot: v}) })
	each(h.Sightings, func(v *sighting) { emit(line{Sighting: v}) })
	each(h.Incidents, func(v *incident) { emit(line{Incident: v}) })
	each(h.Jobs, func(v *finalJob) { emit(line{Job: v}) })
	each(h.Messages, func(v *finalMessage) { emit(line{Message: v}) })
	each(h.Letters, func(v *finalLetter) { emit(line{Letter: v}) })
	each(h.Rests, func(v *rest) { emit(line{Rest: v}) })
	each(h.Runs, func(v *engineRun) { emit(line{Engine: v}) })
}

func each[T any](s []T, f func(*T)) {
	for i := range s {
		f(&s[i])
	}
}

// writeHistory writes h to a file, a JSON object a line.
func writeHistory(path string, h *history) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	var failed error
	h.lines(func(l line) {
		if err := enc.Encode(l); err != nil && failed == nil {
			failed = err
		}
	})
	if err := w.Flush(); failed == nil {
		failed = err
	}
	if err := f.Close(); failed == nil {
		failed = err
	}
	return failed
}

// readHistory reads what writeHistory wrote. A line that is not understood is an error.
func readHistory(path string) (*history, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := &history{}
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 64<<20)
	for n := 1; sc.Scan(); n++ {
		dec := json.NewDecoder(bytes.NewReader(sc.Bytes()))
		dec.DisallowUnknownFields()
		var l line
		if err := dec.Decode(&l); err != nil {
			return nil, fmt.Errorf("%s line %d: %w", path, n, err)
		}
		h.take(l)
	}
	return h, sc.Err()
}

func (h *history) take(l line) {
	switch {
	case l.Run != nil:
		h.Info = *l.Run
	case l.Starts != nil:
		h.Starts = *l.Starts
	case l.Op != nil:
		h.Ops = append(h.Ops, *l.Op)
	case l.Receipt != nil:
		h.Receipts = append(h.Receipts, *l.Receipt)
	case l.Fault != nil:
		h.Faults = append(h.Faults, *l.Fault)
	case l.Snapshot != nil:
		h.Snapshots = append(h.Snapshots, *l.Snapshot)
	case l.Sighting != nil:
		h.Sightings = append(h.Sightings, *l.Sighting)
	case l.Incident != nil:
		h.Incidents = append(h.Incidents, *l.Incident)
	case l.Job != nil:
		h.Jobs = append(h.Jobs, *l.Job)
	case l.Message != nil:
		h.Messages = append(h.Messages, *l.Message)
	case l.Letter != nil:
		h.Letters = append(h.Letters, *l.Letter)
	case l.Rest != nil:
		h.Rests = append(h.Rests, *l.Rest)
	case l.Engine != nil:
		h.Runs = append(h.Runs, *l.Engine)
	}
}
