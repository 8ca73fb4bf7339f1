package storage_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/storage"
)

func entry(engine, operation string, at time.Time) storage.HistoryEntry {
	return storage.HistoryEntry{
		Engine: engine, InstanceID: "publisher", Operation: operation, Status: storage.HistorySucceeded, Duration: 1234 * time.Millisecond,
		Input: json.RawMessage(`{"a":1}`), Output: json.RawMessage(`{"b":2}`), CreatedAt: at, CorrelationID: storage.NewID().String(),
	}
}

func TestAddHistory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	a := entry("hmac", "rotate", anInstant)
	b := a
	b.Operation, b.Status, b.Error, b.Input, b.Output = "notify", storage.HistoryFailed, "no answer", nil, nil
	for i, want := range []int{2, 0} {
		if n := must(w.AddHistory(w.ctx, []storage.HistoryEntry{a, b})); n != want {
			t.Errorf("call %d added %d, want %d", i, n, want)
		}
	}
	for _, want := range []storage.HistoryEntry{a, b} {
		want.RowKey = storage.HistoryRowKey(want)
		if !strings.HasPrefix(want.RowKey, a.CorrelationID+"-20260504T030201.987654Z-") {
			t.Error(want.RowKey)
		}
		if got := must(w.HistoryEntry(w.ctx, "hmac", want.RowKey)); fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", want) {
			t.Errorf("%+v, want %+v", *got, want)
		}
	}
	keyed := a
	keyed.RowKey = "mine-20260504T030201.987654Z"
	other := keyed
	other.Status = storage.HistoryFailed
	if n := must(w.AddHistory(w.ctx, []storage.HistoryEntry{keyed})); n != 1 {
		t.Errorf("added %d", n)
	}
	if n := must(w.AddHistory(w.ctx, []storage.HistoryEntry{keyed, other})); n != 0 {
		t.Errorf("added %d of a row key that is taken", n)
	}
	for _, key := range []string{"mine", "mine-20260504T030201.987655Z", "mine-20261304T030201.987654Z"} {
		bad := a
		bad.RowKey = key
		if _, err := w.AddHistory(w.ctx, []storage.HistoryEntry{bad}); !errors.Is(err, storage.ErrRowKey) {
			t.Errorf("%s: %v", key, err)
		}
		if _, err := w.HistoryEntry(w.ctx, "hmac", key); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("%s: %v", key, err)
		}
	}
	long := a
	long.InstanceID = strings.Repeat("x", 256)
	if _, err := w.AddHistory(w.ctx, []storage.HistoryEntry{a, long}); err == nil {
		t.Error("an instance id of 256 characters was taken")
	}
	if _, err := w.HistoryEntry(w.ctx, "tls", keyed.RowKey); !errors.Is(err, storage.ErrNotFound) {
		t.Error(err)
	}
}

// TestAttemptsAreKept reads the history of attempts off each policy.
func TestAttemptsAreKept(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *world) {
		k := w.consumer("k", storage.TypePush)
		finish := func() []storage.HistoryEntry {
			t.Helper()
			w.exec(`DELETE FROM engineHistory`)
			lease := w.lease(longLease)
			ids := w.accepted(5, k, lease)
			var outcomes []storage.Outcome
			for i, v := range []storage.Verdict{storage.Delivered, storage.RetryLater, storage.Die, storage.HandBack, storage.Delivered} {
				o := outcome(ids[i], lease.Token, k, v)
				o.Attempt = &storage.Attempt{Code: 200 + i, Duration: 42 * time.Millisecond, Answer: strings.Repeat("é", 300), Retry: i}
				outcomes = append(outcomes, o)
			}
			outcomes[4].Token++ // its lease was lost: it never was
			if lost := must(w.Finish(w.ctx, 0, outcomes)); len(lost) != 1 {
				t.Errorf("lost %d", len(lost))
			}
			rows, more, err := w.ListHistory(w.ctx, storage.HistoryFilter{Engine: storage.EngineDelivery, Operation: "deliver"}, nil, 10)
			if err != nil || more {
				t.Error(more, err)
			}
			slices.SortFunc(rows, func(a, b storage.HistoryEntry) int {
				return strings.Compare(string(b.Status)+b.Error, string(a.Status)+a.Error)
			})
			for _, h := range rows {
				if h.InstanceID != "k" || h.Duration != 42*time.Millisecond || !strings.HasPrefix(h.RowKey, h.CorrelationID+"-") {
					t.Errorf("%+v", h)
				}
			}
			return rows
		}
		statuses := func(rows []storage.HistoryEntry) string {
			s := ""
			for _, h := range rows {
				s += string(h.Status[:1])
			}
			return s
		}
		all := finish()
		if got := statuses(all); got != "SFF" {
			t.Fatal(got)
		}
		full := must(w.HistoryEntry(w.ctx, all[0].Engine, all[0].RowKey))
		if got, want := string(full.Output), `{"statusCode":200,"retry":0,"answer":"`+strings.Repeat("é", 256)+`"}`; got != want || full.Error != "" {
			t.Errorf("%s %q", got, full.Error)
		}
		if all[1].Error == "" {
			t.Errorf("%+v", all[1])
		}
		w.exec(`UPDATE channel SET history = 1`)
		w.exec(`UPDATE catalog SET version = version + 1`)
		must(w.Catalog(w.ctx))
		if got := statuses(finish()); got != "FF" {
			t.Error(got)
		}
		w.exec(`UPDATE channel SET history = 2`)
		w.exec(`UPDATE catalog SET version = version + 1`)
		must(w.Catalog(w.ctx))
		if got := statuses(finish()); got != "" {
			t.Error(got)
		}
	})
}

func TestOperationsAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	k := w.consumer("k", storage.TypePush)
	rowKey := func() string {
		return must2(w.ListDeadLetters(w.ctx, storage.DLQFilter{Status: storage.DLQPending}, nil, 1))(new(bool))[0].RowKey
	}
	w.dead(3, k)
	must(w.RequeueAll(w.ctx, k.Key, "ann"))
	must(w.RequeueAll(w.ctx, k.Key, "ann")) // nothing is dead: nothing was done
	w.dead(2, k)
	must(w.PurgeAll(w.ctx, k.Key, 0, "ann"))
	w.ok(w.PurgeOne(w.ctx, k.Key, w.dead(1, k)[0], 0, "ann"))
	w.ok(w.RequeueOne(w.ctx, k.Key, w.dead(1, k)[0], "ann"))
	w.dead(4, k)
	must(w.ResolveDeadLetter(w.ctx, "delivery", rowKey(), storage.Resolution{Status: storage.DLQResolved, By: "ann"}))
	must(w.ResolveDeadLetter(w.ctx, "delivery", rowKey(), storage.Resolution{Status: storage.DLQExpired, By: "ann"}))
	must(w.RetryDeadLetter(w.ctx, "delivery", rowKey(), "ann"))
	must(w.ExpireDeadLetters(w.ctx, -time.Hour, "", "ann"))
	rows := must2(w.ListHistory(w.ctx, storage.HistoryFilter{}, nil, 50))(new(bool))
	slices.Reverse(rows)
	var got []string
	for _, h := range rows {
		full := must(w.HistoryEntry(w.ctx, h.Engine, h.RowKey))
		got = append(got, h.Operation+string(full.Output))
		if !strings.Contains(string(full.Input), `"by":"ann"`) || full.Status != storage.HistorySucceeded {
			t.Errorf("%s", full.Input)
		}
	}
	want := []string{`requeue{"count":3}`, `purge{"count":2}`, `purge{"count":1}`, `requeue{"count":1}`, `resolve{"count":1}`, `expire{"count":1}`, `requeue{"count":1}`, `expire{"count":1}`}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestListsAgainstTheFilter pages through random rows with every combination of filters and compares with a filter in memory.
func TestListsAgainstTheFilter(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var now time.Time
	w.ok(w.DB().QueryRowContext(w.ctx, `SELECT NOW(6)`).Scan(&now))
	w.ok(w.EnsureHistoryPartitions(w.ctx, 2))
	instants := []time.Time{now, now.Add(-time.Hour), now.Add(-25 * time.Hour), now.Add(-5 * 24 * time.Hour), now.Add(-50 * 24 * time.Hour), now.Add(26 * time.Hour)}
	pick := func(of ...string) string { return of[rand.IntN(len(of))] }
	var entries []storage.HistoryEntry
	var letters []storage.DeadLetter
	for i := range 150 {
		at := instants[rand.IntN(len(instants))].Add(time.Duration(rand.IntN(3)) * time.Microsecond)
		h := entry(pick("hmac", "tls", "delivery"), pick("rotate", "notify", "renew"), at)
		h.InstanceID, h.CorrelationID = pick("i1", "i2"), pick("c1", "c2", "c3")
		h.Status = storage.HistoryStatus(pick("Succeeded", "Failed"))
		h.RowKey = fmt.Sprintf("%s-%s-%d", h.CorrelationID, at.Format("20060102T150405.000000Z"), i)
		entries = append(entries, h)
		d := letter(pick("hmac", "tls", "alerts"), pick("i1", "i2"), at)
		d.RowKey = fmt.Sprint("r", i%100) // an engine's row keys are its own
		if must(w.AddDeadLetter(w.ctx, d)) {
			if d.Status = storage.DLQStatus(pick("Pending", "Resolved", "Expired")); d.Status != storage.DLQPending {
				must(w.ResolveDeadLetter(w.ctx, d.Engine, d.RowKey, storage.Resolution{Status: d.Status}))
			}
			letters = append(letters, d)
		}
	}
	w.exec(`DELETE FROM engineHistory`) // of the resolutions
	if n := must(w.AddHistory(w.ctx, entries)); n != len(entries) {
		t.Fatalf("added %d", n)
	}
	byTime := func(aAt, bAt time.Time, aKey, bKey, aEngine, bEngine string) int {
		return slices.Compare([]string{bAt.Format(time.RFC3339Nano), bKey, bEngine}, []string{aAt.Format(time.RFC3339Nano), aKey, aEngine})
	}
	slices.SortFunc(entries, func(a, b storage.HistoryEntry) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return byTime(now, now, a.RowKey, b.RowKey, a.Engine, b.Engine)
	})
	slices.SortFunc(letters, func(a, b storage.DeadLetter) int {
		if c := b.LastFailureAt.Compare(a.LastFailureAt); c != 0 {
			return c
		}
		return byTime(now, now, a.RowKey, b.RowKey, a.Engine, b.Engine)
	})
	from, to := now.Add(-6*24*time.Hour), now
	inTime := func(at time.Time, f, t *time.Time) bool {
		return (f == nil || !at.Before(*f)) && (t == nil || at.Before(*t))
	}
	is := func(filter, value string) bool { return filter == "" || filter == value }
	for i := range 1 << 7 {
		on := func(bit int, v string) string {
			if i>>bit&1 == 0 {
				return ""
			}
			return v
		}
		var f, u *time.Time
		if i>>4&1 == 1 {
			f = &from
		}
		if i>>5&1 == 1 {
			u = &to
		}
		hf := storage.HistoryFilter{Engine: on(0, "hmac"), InstanceID: on(1, "i1"), Status: storage.HistoryStatus(on(2, "Failed")), Operation: on(3, "rotate"),
			CorrelationID: on(6, "c1"), From: f, To: u}
		var want, got []string
		for _, h := range entries {
			if is(hf.Engine, h.Engine) && is(hf.InstanceID, h.InstanceID) && is(string(hf.Status), string(h.Status)) && is(hf.Operation, h.Operation) &&
				is(hf.CorrelationID, h.CorrelationID) && inTime(h.CreatedAt, f, u) {
				want = append(want, h.Engine+h.RowKey)
			}
		}
		var cur *storage.TableCursor
		for more := true; more; {
			var rows []storage.HistoryEntry
			var err error
			rows, more, err = w.ListHistory(w.ctx, hf, cur, 17)
			w.ok(err)
			for _, h := range rows {
				got = append(got, h.Engine+h.RowKey)
				cur = &storage.TableCursor{At: h.CreatedAt, Engine: h.Engine, RowKey: h.RowKey}
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("history of %+v: %v, want %v", hf, got, want)
		}
		df := storage.DLQFilter{Engine: hf.Engine, InstanceID: hf.InstanceID, Status: storage.DLQStatus(on(2, "Expired")), From: f, To: u}
		want, got, cur = nil, nil, nil
		for _, d := range letters {
			if is(df.Engine, d.Engine) && is(df.InstanceID, d.InstanceID) && is(string(df.Status), string(d.Status)) && inTime(d.LastFailureAt, f, u) {
				want = append(want, d.Engine+d.RowKey)
			}
		}
		for more := true; more; {
			var rows []storage.DeadLetter
			var err error
			rows, more, err = w.ListDeadLetters(w.ctx, df, cur, 7)
			w.ok(err)
			for _, d := range rows {
				got = append(got, d.Engine+d.RowKey)
				cur = &storage.TableCursor{At: d.LastFailureAt, Engine: d.Engine, RowKey: d.RowKey}
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("dead letters of %+v: %v, want %v", df, got, want)
		}
	}
}

func TestHistoryPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	var now time.Time
	w.ok(w.DB().QueryRowContext(w.ctx, `SELECT NOW(6)`).Scan(&now))
	count := func() int64 {
		return w.number(`SELECT COUNT(*) FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'engineHistory'`)
	}
	add := func(at time.Time) { must(w.AddHistory(w.ctx, []storage.HistoryEntry{entry("hmac", "rotate", at)})) }
	add(now.AddDate(0, 0, -40))
	add(now.AddDate(0, 0, 1))
	errs := make(chan error, 4)
	for range cap(errs) { // instances do it at the same time
		go func() { errs <- w.EnsureHistoryPartitions(w.ctx, 3) }()
	}
	for range cap(errs) {
		w.ok(<-errs)
	}
	if n := count(); n != 5 {
		t.Errorf("%d partitions, want today, three days and the rest", n)
	}
	w.ok(w.EnsureHistoryPartitions(w.ctx, 5))
	if n := count(); n != 7 {
		t.Errorf("%d partitions, want two more", n)
	}
	add(now.AddDate(0, 0, 100)) // a row always finds a partition
	today := now.Truncate(24 * time.Hour)
	if names, rows, err := w.DropHistoryPartitions(w.ctx, today.Add(23*time.Hour), false); err != nil || len(names) != 0 || rows != 0 {
		t.Errorf("%v, %d, %v", names, rows, err)
	}
	for _, dry := range []bool{true, false} {
		names, rows, err := w.DropHistoryPartitions(w.ctx, today.AddDate(0, 0, 2), dry)
		if err != nil || rows != 2 || !slices.Equal(names, []string{"p" + today.Format("20060102"), "p" + today.AddDate(0, 0, 1).Format("20060102")}) {
			t.Errorf("dry %v: %v, %d, %v", dry, names, rows, err)
		}
	}
	if n := w.number(`SELECT COUNT(*) FROM engineHistory`); n != 1 || count() != 5 {
		t.Errorf("%d entries in %d partitions are left", n, count())
	}
}
