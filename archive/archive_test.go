package archive

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"gocloud.dev/blob/memblob"

	"github.com/redrive-mq/redrive/storage"
)

func TestOptions(t *testing.T) {
	t.Parallel()
	store, folder := &storage.Store{}, t.TempDir()
	for _, c := range []struct {
		name string
		o    Options
		want string // part of the error; empty: none
	}{
		{"off", Options{}, ""},
		{"folder", Options{Store: store, RetentionDays: 1, Destination: filepath.Join(folder, "new", "one")}, ""},
		{"file URL", Options{Store: store, RetentionDays: 1, Destination: "file://" + folder + "/two"}, ""},
		{"no store", Options{RetentionDays: 1, Destination: folder}, "no store"},
		{"no destination", Options{Store: store, RetentionDays: 1}, "no destination"},
		{"retention", Options{Store: store, RetentionDays: -1, Destination: folder}, "-1 days"},
		{"retention", Options{Store: store, RetentionDays: 36501, Destination: folder}, "36501 days"},
		{"interval", Options{Store: store, RetentionDays: 1, Destination: folder, Interval: -time.Second}, "-1s"},
		{"file size", Options{Store: store, RetentionDays: 1, Destination: folder, MaxFileBytes: -1}, "-1"},
		{"node", Options{Store: store, RetentionDays: 1, Destination: folder, Node: strings.Repeat("x", 201)}, "201 bytes"},
		{"owner", Options{Store: store, RetentionDays: 1, Destination: folder, Owner: strings.Repeat("x", 65)}, "65 bytes"},
		{"lock", Options{Store: store, RetentionDays: 1, Destination: folder, LockTTL: time.Millisecond}, "1ms"},
		{"scheme", Options{Store: store, RetentionDays: 1, Destination: "ftp://secret@host/x"}, `"ftp"`},
		{"file host", Options{Store: store, RetentionDays: 1, Destination: "file://host/x"}, "file:///folder"},
		{"no URL", Options{Store: store, RetentionDays: 1, Destination: "s3://se%zzcret@x"}, "not a URL"},
	} {
		a, err := New(c.o)
		if (err == nil) != (c.want == "") || (err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "cret"))) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
		if err == nil {
			if err := a.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	for _, made := range []string{"new/one", "two"} {
		if _, err := os.Stat(filepath.Join(folder, made)); err != nil {
			t.Error(err)
		}
	}
}

// An S3 or GCS bucket that would be reached in production is at least opened.
func TestObjectStoreURL(t *testing.T) {
	t.Parallel()
	a, err := New(Options{Store: &storage.Store{}, RetentionDays: 1, Destination: "s3://bucket/a/folder?region=eu-central-1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// Only what is old and delivered to everybody goes.
func TestWhatGoesAndWhatStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const delivered, dead = storage.Delivered, storage.Die
	goes := w.message(2, 31*day, delivered, delivered)
	nobodys := w.message(1, 31*day) // no consumer was there
	stay := slices.Concat(
		w.message(1, 29*day, delivered, delivered),
		w.message(1, 40*day, delivered, dead),
		w.message(1, 40*day, dead, dead),
		w.message(1, 40*day, delivered, 0), // in flight
		w.message(1, 40*day, delivered, storage.RetryLater),
	)
	waiting := w.message(1, 40*day)
	w.exec(`UPDATE message SET dispatchedAt = NULL WHERE messageId = ?`, waiting[0])
	shelved := w.message(1, 40*day, delivered, dead)
	w.exec(`UPDATE job j JOIN message m ON m.id = j.messageId SET j.status = 1005 WHERE m.messageId = ? AND j.status = 1004`, shelved[0])

	folder := filepath.Join(t.TempDir(), "archive")
	reg := prometheus.NewRegistry()
	a := w.archive(func(o *Options) { o.Destination, o.Registerer = folder, reg })
	w.check(a.prune(t.Context()))
	w.wantLeft(stay, waiting, shelved)
	files := w.files(folder)
	w.wantArchived(files, goes, nobodys)
	if len(files) != 1 {
		t.Errorf("%d files, want 1", len(files))
	}
	size := 0
	for _, content := range files {
		size += len(content)
	}
	if testutil.ToFloat64(a.pruned) != 3 || testutil.ToFloat64(a.bytes) != float64(size) || testutil.ToFloat64(a.failures) != 0 {
		t.Errorf("metrics: %v messages, %v bytes of %d, %v failures", testutil.ToFloat64(a.pruned), testutil.ToFloat64(a.bytes), size, testutil.ToFloat64(a.failures))
	}
	if n, err := testutil.GatherAndCount(reg, "redrive_pruned_messages_total", "redrive_archive_bytes_total", "redrive_prune_failures_total"); err != nil || n != 3 {
		t.Errorf("%d metrics (%v), want 3", n, err)
	}

	w.check(a.prune(t.Context())) // nothing is left to do: no empty file
	if again := w.files(folder); len(again) != 1 {
		t.Errorf("%d files after a run without messages, want 1", len(again))
	}
}

func TestRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.message(3, 31*day, storage.Delivered, storage.Delivered)
	binary := []byte{0, 0xff, '\n', 0xfe}
	text := "\x00\"<ü\u2028>\"\n&"
	w.exec(`UPDATE message_payload p JOIN message m ON m.id = p.messageId SET p.body = ? WHERE m.messageId = ?`, binary, ids[1])
	w.exec(`UPDATE message_payload p JOIN message m ON m.id = p.messageId SET p.body = ? WHERE m.messageId = ?`, text, ids[2])
	w.exec(`UPDATE job SET retryAttemptCount = 2 WHERE consumerId = ?`, w.b.Key)
	w.check(w.store.DeleteConsumer(t.Context(), w.a.Key, w.a.ChangedAt))
	folder := t.TempDir()
	w.check(w.archive(into(folder)).prune(t.Context()))

	files := w.files(folder)
	byID := map[string]Record{}
	for _, r := range w.records(files) {
		byID[r.MessageID] = r
	}
	for _, content := range files {
		if !bytes.Contains(content, []byte(`"payload":"a <body> & more"`)) || bytes.Count(content, []byte("payloadEncoding")) != 1 {
			t.Errorf("the lines are not as documented:\n%s", content)
		}
	}
	plain := byID[ids[0]]
	if _, err := storage.ParseID(plain.ID); err != nil {
		t.Error(err)
	}
	if plain.ChannelID != "order-events" || plain.ProducerID != "shop" || plain.ContentType != "text/plain" || plain.Priority != 3 ||
		!maps.Equal(plain.Headers, map[string]string{"X-Order": "4711"}) || plain.PayloadEncoding != "" ||
		time.Since(plain.ReceivedAt) < 30*day || plain.DispatchedAt == nil || plain.ReceivedAt.Location() != time.UTC {
		t.Errorf("record %+v", plain)
	}
	if len(plain.Jobs) != 2 || plain.Jobs[0].ConsumerID != "" || plain.Jobs[1].ConsumerID != "b" ||
		plain.Jobs[1].Status != "DELIVERED" || plain.Jobs[1].RetryAttemptCount != 2 || plain.Jobs[1].StatusChangedAt.IsZero() {
		t.Errorf("jobs %+v", plain.Jobs)
	}
	if r := byID[ids[1]]; r.PayloadEncoding != "base64" || r.Payload != base64.StdEncoding.EncodeToString(binary) {
		t.Errorf("a binary payload became %q, encoding %q", r.Payload, r.PayloadEncoding)
	}
	if r := byID[ids[2]]; r.PayloadEncoding != "" || r.Payload != text {
		t.Errorf("payload %q became %q", text, r.Payload)
	}
}

// A new file begins when one is full, and the names tell node and time.
func TestRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.message(250, 31*day, storage.Delivered) // more than two pages
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	a := w.archive(func(o *Options) { o.Bucket, o.MaxFileBytes, o.Node = bucket, 8000, "Kölner node/1" })
	w.check(a.prune(t.Context()))
	w.wantLeft()
	files := w.blobs(bucket)
	w.wantArchived(files, ids)
	name := regexp.MustCompile(`^K-lner-node-1_\d{8}T\d{6}\.\d{3}Z\.jsonl$`)
	small := 0
	for key, content := range files {
		if !name.MatchString(key) {
			t.Errorf("file name %q", key)
		}
		line := bytes.IndexByte(content, '\n') + 1
		if len(content) < 8000 {
			small++
		}
		if len(content) > 8000+2*line {
			t.Errorf("%s has %d bytes", key, len(content))
		}
	}
	if len(files) < 5 || small > 1 {
		t.Errorf("%d files, %d of them not full", len(files), small)
	}
}

func TestFileNames(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 11, 15, 30, 123_999_999, time.FixedZone("CET", 3600))
	n := fileNames{node: "n", now: func() time.Time { return now }}
	for _, want := range []string{"n_20261121T101530.123Z.jsonl", "n_20261121T101530.124Z.jsonl", "n_20261121T101530.125Z.jsonl"} {
		if got := n.next(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// Where a file cannot be written, nothing is deleted; when it can be again, everything goes on.
func TestFailedWriteDeletesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.message(3, 31*day, storage.Delivered, storage.Delivered)
	folder := filepath.Join(t.TempDir(), "archive")
	a := w.archive(into(folder))
	w.check(os.Remove(folder))
	w.check(os.WriteFile(folder, nil, 0o600)) // a file in the folder's place
	a.Start(t.Context())
	soon(t, "two failed runs", func() bool { return testutil.ToFloat64(a.failures) >= 2 })
	w.wantLeft(ids)
	w.check(os.Remove(folder))
	w.check(os.Mkdir(folder, 0o700))
	soon(t, "the run that succeeds", func() bool { return len(w.left()) == 0 })
	w.wantArchived(w.files(folder), ids)
}

// An error in the middle of a file leaves no file, and what was archived before it is deleted.
func TestErrorInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.message(150, 31*day, storage.Delivered)
	folder := t.TempDir()
	faulty := &faultyStore{Store: w.store}
	a := w.archive(func(o *Options) { o.Destination, o.Store = folder, faulty })
	faulty.prunable = func(after storage.ID) error {
		if after.IsZero() {
			return nil
		}
		return errors.New("the second page fails")
	}
	if err := a.prune(t.Context()); err == nil {
		t.Fatal("no error")
	}
	w.wantLeft(ids)
	if files := w.files(folder); len(files) != 0 {
		t.Errorf("an unfinished file is there: %v", slices.Collect(maps.Keys(files)))
	}
	a.o.MaxFileBytes = 10000
	if err := a.prune(t.Context()); err == nil {
		t.Fatal("no error")
	}
	if got := len(w.records(w.files(folder))) + len(w.left()); got != 150 || len(w.left()) == 150 {
		t.Errorf("%d messages are archived or left, %d left; want 150 and fewer", got, len(w.left()))
	}
	faulty.prunable = nil
	w.check(a.prune(t.Context()))
	w.wantLeft()
	w.wantArchived(w.files(folder), ids)
}

// A crash between the write and the deletion archives twice and loses nothing.
func TestCrashBeforeDeletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.message(5, 31*day, storage.Delivered, storage.Delivered)
	folder := t.TempDir()
	crashing := &faultyStore{Store: w.store, prune: func() error { return errors.New("it crashed") }}
	if err := w.archive(func(o *Options) { o.Destination, o.Store = folder, crashing }).prune(t.Context()); err == nil {
		t.Fatal("no error")
	}
	w.wantLeft(ids)
	w.wantArchived(w.files(folder), ids)
	w.check(w.archive(into(folder)).prune(t.Context()))
	w.wantLeft()
	w.wantArchived(w.files(folder), ids, ids)
}

// A deletion that fails is made up for by the next run: what is in a durable file is not archived again.
func TestFailedDeletionIsMadeUpFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.message(5, 31*day, storage.Delivered, storage.Delivered)
	folder := t.TempDir()
	faulty := &faultyStore{Store: w.store, prune: func() error { return errors.New("too busy") }}
	a := w.archive(func(o *Options) { o.Destination, o.Store = folder, faulty })
	for range 2 {
		if err := a.prune(t.Context()); err == nil {
			t.Fatal("no error")
		}
	}
	w.wantLeft(ids)
	faulty.prune = nil
	w.check(a.prune(t.Context()))
	w.wantLeft()
	w.wantArchived(w.files(folder), ids)
}

// faultyStore is a database that fails where it is told to.
type faultyStore struct {
	Store
	prunable func(after storage.ID) error
	prune    func() error
}

func (f *faultyStore) Prunable(ctx context.Context, age time.Duration, after storage.ID, limit int) (storage.PrunePage, error) {
	if f.prunable != nil {
		if err := f.prunable(after); err != nil {
			return storage.PrunePage{}, err
		}
	}
	return f.Store.Prunable(ctx, age, after, limit)
}

func (f *faultyStore) Prune(ctx context.Context, shard uint8, msgs []storage.PrunedMessage) error {
	if f.prune != nil {
		return f.prune()
	}
	return f.Store.Prune(ctx, shard, msgs)
}

// What /job-status and messages-status count is what is left.
func TestCountsAfterPruning(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.message(4, 31*day, storage.Delivered, storage.Delivered)
	w.message(2, 31*day, storage.Delivered, storage.Die)
	w.message(3, day, storage.Delivered, storage.Delivered)
	w.check(w.archive(into(t.TempDir())).prune(t.Context()))
	status, err := w.store.JobStatus(t.Context())
	w.check(err)
	type line struct {
		consumer string
		status   storage.Status
	}
	got := map[line]int64{}
	for _, s := range status {
		got[line{s.ConsumerID, s.Status}] = s.Count
	}
	want := map[line]int64{{"a", storage.StatusDelivered}: 5, {"b", storage.StatusDelivered}: 3, {"b", storage.StatusDead}: 2}
	if !maps.Equal(got, want) {
		t.Errorf("job status %v, want %v", got, want)
	}
	counts, err := w.store.MessageCounts(t.Context(), w.channel.Key)
	w.check(err)
	if counts.Dispatched != 5 {
		t.Errorf("%d messages dispatched, want 5", counts.Dispatched)
	}
}

func TestRetentionZeroDoesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.message(1, 4000*day, storage.Delivered)
	folder := filepath.Join(t.TempDir(), "archive")
	a := w.archive(func(o *Options) { o.RetentionDays, o.Destination = 0, folder })
	a.Start(t.Context())
	if a.cancel != nil {
		t.Error("it runs")
	}
	w.check(a.Stop(t.Context()))
	w.check(a.Stop(t.Context()))
	w.wantLeft(ids)
	if _, err := os.Stat(folder); err == nil {
		t.Error("it made the folder")
	}
}

// Two instances share the work; what both of them archive is deleted and counted once.
func TestTwoInstances(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.message(300, 31*day, storage.Delivered, storage.Delivered)
	folder := t.TempDir()
	for _, node := range []string{"one", "two"} {
		a := w.archive(func(o *Options) {
			o.Destination, o.Node, o.Interval, o.MaxFileBytes = folder, node, 10*time.Millisecond, 5000
		})
		a.Start(t.Context())
	}
	soon(t, "all is archived", func() bool { return len(w.left()) == 0 })
	w.wantArchived(w.files(folder), ids) // under the lock, so once
}

func TestTwoInstancesWithoutLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.message(300, 31*day, storage.Delivered, storage.Delivered)
	folder := t.TempDir()
	ended := make(chan error)
	for _, node := range []string{"one", "two"} {
		a := w.archive(func(o *Options) { o.Destination, o.Node, o.MaxFileBytes = folder, node, 5000 })
		go func() { ended <- a.prune(t.Context()) }()
	}
	w.check(errors.Join(<-ended, <-ended))
	w.wantLeft()
	archived := map[string]bool{}
	for _, r := range w.records(w.files(folder)) {
		archived[r.MessageID] = true
	}
	if len(archived) != len(ids) {
		t.Errorf("%d messages are archived, want %d", len(archived), len(ids))
	}
	for _, k := range []*storage.Consumer{w.a, w.b} {
		if n := w.number(`SELECT COALESCE(SUM(ABS(n)), 0) FROM (SELECT SUM(n) AS n FROM tally WHERE refId = ? AND kind IN (1, 2) GROUP BY kind) x`, k.Key); n != 0 {
			t.Errorf("consumer %s: the counters are off by %d", k.ID, n)
		}
	}
	counts, err := w.store.MessageCounts(t.Context(), w.channel.Key)
	w.check(err)
	if counts.Dispatched != 0 {
		t.Errorf("%d messages counted, want 0", counts.Dispatched)
	}
}

// Stop gives up an unfinished file and releases the lock.
func TestStopInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ids := w.message(150, 31*day, storage.Delivered)
	folder := t.TempDir()
	reached := make(chan struct{})
	store := &faultyStore{Store: w.store}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	store.prunable = func(after storage.ID) error {
		if after.IsZero() {
			return nil
		}
		close(reached)
		<-ctx.Done() // a slow page, which a cancelled context ends
		return ctx.Err()
	}
	a := w.archive(func(o *Options) { o.Destination, o.Store, o.LockTTL = folder, store, time.Hour })
	a.Start(ctx)
	<-reached
	bounded, done := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer done()
	if err := a.Stop(bounded); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a bounded stop returned %v", err)
	}
	cancel()
	w.check(a.Stop(t.Context()))
	w.wantLeft(ids)
	if files := w.files(folder); len(files) != 0 {
		t.Errorf("an unfinished file is there: %v", slices.Collect(maps.Keys(files)))
	}
	if n := w.number("SELECT COUNT(*) FROM `lock` WHERE owner <> ''"); n != 0 {
		t.Error("the lock is still held")
	}
}
