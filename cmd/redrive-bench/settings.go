package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// maxDead bounds --dead, --requeue, --backlog and --history: message ids carry nine digits.
const maxDead = 100_000_000

// settings are the flags with every default filled in; they are printed with the results.
type settings struct {
	Only             []string      `json:"only"`
	Size             string        `json:"size"`
	Repeat           int           `json:"repeat"`
	Clients          int           `json:"clients"`
	Messages         int           `json:"messages"`
	PayloadBytes     int           `json:"payloadBytes"`
	Consumers        int           `json:"consumers"`
	Duration         time.Duration `json:"durationNanoseconds"`
	Rate             int           `json:"rate"`
	Dead             int           `json:"dead"`
	NewDead          int           `json:"newDead"`
	DeadPayloadBytes int           `json:"deadPayloadBytes"`
	Requeue          int           `json:"requeue"`
	Backlog          int           `json:"backlog"`
	History          int           `json:"history"`
	BufferPoolMiB    int           `json:"bufferPoolMiB"` // of a private server
	Env              []string      `json:"env,omitempty"`

	// Warmup is broadcast before each measurement and not measured: connections, caches, first pages.
	Warmup int `json:"warmup"`
	// Samples is how often each status endpoint and each list is asked.
	Samples int `json:"samples"`
	// Cycles is how many counting cycles without new deaths are averaged.
	Cycles int `json:"cycles"`
	// Stall is how long nothing may arrive before what is missing is taken as lost.
	Stall time.Duration `json:"stallNanoseconds"`
	// RetryRate and Baseline shape the other consumer's failing traffic around a requeue: messages a second,
	// and how long its retries are watched before the requeue starts.
	RetryRate int           `json:"retryRate"`
	Baseline  time.Duration `json:"baselineNanoseconds"`
}

// sized returns the defaults of a size, "small" or "full".
func sized(size string) settings {
	s := settings{
		Size: size, Clients: 64, Messages: 20_000, PayloadBytes: 1024, Consumers: 5,
		Duration: 15 * time.Second, Rate: 50, Dead: 100_000, NewDead: 10_000, DeadPayloadBytes: 128,
		Requeue: 200_000, Backlog: 1_000_000, History: 1_000_000, Warmup: 500, Samples: 200, Cycles: 5, Stall: time.Minute,
		RetryRate: 20, Baseline: 5 * time.Second, BufferPoolMiB: 1024,
	}
	if size == "small" {
		s.Messages, s.Duration, s.Dead, s.NewDead, s.Requeue = 2_000, 3*time.Second, 10_000, 1_000, 5_000
		s.Backlog, s.History = 20_000, 20_000
		s.Warmup, s.Samples, s.Cycles, s.Baseline, s.BufferPoolMiB = 100, 50, 3, 2*time.Second, 256
	}
	return s
}

// settings fills in defaults and refuses values that cannot be measured.
func (f flags) settings() (settings, error) {
	s := sized(f.Size)
	s.Only, s.Repeat, s.Env = f.Only, f.Repeat, f.Env
	given := []struct {
		flag  string
		value int
		into  *int
		most  int
	}{
		{"--repeat", f.Repeat, &s.Repeat, 1000},
		{"--clients", f.Clients, &s.Clients, 4096},
		{"--messages", f.Messages, &s.Messages, maxDead},
		{"--payload-bytes", f.PayloadBytes, &s.PayloadBytes, 16 << 20},
		{"--consumers", f.Consumers, &s.Consumers, 256},
		{"--rate", f.Rate, &s.Rate, 10_000},
		{"--dead", f.Dead, &s.Dead, maxDead},
		{"--new-dead", f.NewDead, &s.NewDead, 100_000},
		{"--dead-payload-bytes", f.DeadPayloadBytes, &s.DeadPayloadBytes, 1 << 20},
		{"--buffer-pool-mib", f.BufferPoolMiB, &s.BufferPoolMiB, 1 << 20},
		{"--requeue", f.Requeue, &s.Requeue, maxDead},
		{"--backlog", f.Backlog, &s.Backlog, maxDead},
		{"--history", f.History, &s.History, maxDead},
	}
	for _, g := range given {
		if g.value < 0 || g.value > g.most {
			return s, fmt.Errorf("%s is %d: allowed are 1 to %d", g.flag, g.value, g.most)
		}
		if g.value > 0 {
			*g.into = g.value
		}
	}
	if f.Duration < 0 || f.Duration > time.Hour {
		return s, fmt.Errorf("--duration is %v: allowed is up to an hour", f.Duration)
	}
	if f.Duration > 0 {
		s.Duration = f.Duration
	}
	if s.Repeat == 0 {
		s.Repeat = 1
	}
	for _, pair := range f.Env {
		if name, _, ok := strings.Cut(pair, "="); !ok || name == "" {
			return s, fmt.Errorf("--env %q is not NAME=VALUE", pair)
		}
	}
	return s, nil
}

// wants says whether a scenario is among those to run.
func (s settings) wants(scenario string) bool {
	return slices.Contains(s.Only, scenario)
}
