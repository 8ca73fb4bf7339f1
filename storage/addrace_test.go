package storage_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

// meeting holds back the statements that begin with prefix until so many wait for each other; later ones pass.
type meeting struct {
	prefix string
	mu     sync.Mutex
	absent int
	met    chan struct{}
}

func (m *meeting) arrange(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.absent, m.met = n, make(chan struct{})
}

func (m *meeting) attend(query string) {
	if !strings.HasPrefix(query, m.prefix) {
		return
	}
	m.mu.Lock()
	met := m.met
	if m.absent--; m.absent == 0 {
		close(met)
	}
	m.mu.Unlock()
	select {
	case <-met:
	case <-time.After(patience):
	}
}

// raced calls add with 0 to n-1 at the same time, all of which have looked before any inserts, and returns how many say
// that theirs was new.
func (m *meeting) raced(t *testing.T, n int, add func(i int) (bool, error)) (added int) {
	t.Helper()
	m.arrange(n)
	fresh, errs := make([]bool, n), make([]error, n)
	var writers sync.WaitGroup
	for i := range n {
		writers.Go(func() { fresh[i], errs[i] = add(i) })
	}
	writers.Wait()
	for i := range n {
		if errs[i] != nil {
			t.Error(errs[i])
		}
		if fresh[i] {
			added++
		}
	}
	return added
}

// Writers of one row key that say different things of it end in one row, which is one of theirs.
func TestHistoryOfSeveralWriters(t *testing.T) {
	t.Parallel()
	m := &meeting{prefix: "INSERT INTO `engineHistory`"}
	w := newWorld(t, (&recorder{before: m.attend}).wrap)
	operations := []string{"rotate", "notify", "renew", "rotate"}
	for round := range 5 {
		entries := make([][]storage.HistoryEntry, len(operations))
		for i, operation := range operations {
			h := entry("hmac", operation, anInstant)
			h.CorrelationID = fmt.Sprint("c", round)
			if i == 3 {
				h.Status = storage.HistoryFailed
			}
			other := h // takes part in every transaction
			other.CorrelationID += "-other"
			if i > 0 {
				h.RowKey = entries[0][0].RowKey
			} else {
				h.RowKey = storage.HistoryRowKey(h)
			}
			entries[i] = []storage.HistoryEntry{h, other}
			if i%2 == 0 {
				slices.Reverse(entries[i])
				entries[i] = slices.Insert(entries[i], 0, h) // twice in one call
			}
		}
		m.raced(t, len(entries), func(i int) (bool, error) {
			n, err := w.AddHistory(w.ctx, entries[i])
			return n > 0, err
		})
		rows, _, err := w.ListHistory(w.ctx, storage.HistoryFilter{CorrelationID: fmt.Sprint("c", round)}, nil, 10)
		if err != nil || len(rows) != 1 || rows[0].RowKey != entries[0][0].RowKey {
			t.Fatalf("%d rows, error %v: %+v", len(rows), err, rows)
		}
		n := must(w.AddHistory(w.ctx, entries[round%4]))
		if n != 0 {
			t.Errorf("afterwards %d were new", n)
		}
		one := entries[1][:1]
		one[0].RowKey = fmt.Sprintf("c%d-20260504T030201.987654Z-alone", round)
		if added := m.raced(t, 3, func(i int) (bool, error) {
			h := one[0]
			h.Operation = operations[i]
			n, err := w.AddHistory(w.ctx, []storage.HistoryEntry{h})
			return n == 1, err
		}); added != 1 {
			t.Errorf("%d of 3 writers say that theirs is new", added)
		}
	}
}

// Writers of the same failure without a row key end in one dead letter, beside that of another failure at the same instant.
func TestDeadLettersOfSeveralWriters(t *testing.T) {
	t.Parallel()
	m := &meeting{prefix: "INSERT INTO `engineDlq`"}
	w := newWorld(t, (&recorder{before: m.attend}).wrap)
	for round := range 5 {
		at := anInstant.Add(time.Duration(round) * time.Second)
		added := m.raced(t, 5, func(i int) (bool, error) {
			d := letter("hmac", "publisher", at)
			d.CorrelationID = []string{"a", "b"}[i%2]
			return w.AddDeadLetter(w.ctx, d)
		})
		if n := w.number(`SELECT COUNT(*) FROM engineDlq WHERE LastFailureAtUtc = ?`, at); n != 2 || added != 2 {
			t.Errorf("%d dead letters, %d writers say that theirs is new, want 2", n, added)
		}
	}
}
