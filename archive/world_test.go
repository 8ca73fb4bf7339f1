package archive

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/xid"
	"gocloud.dev/blob"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestMain(m *testing.M) { storagetest.Main(m) }

const day = 24 * time.Hour

// world is a database with a channel, a producer and two consumers.
type world struct {
	t        testing.TB
	store    *storage.Store
	channel  *storage.Channel
	producer *storage.Producer
	a, b     *storage.Consumer

	made int
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t}
	dsn := storagetest.DSN(t)
	var err error
	w.store, err = storage.Open(storage.Options{DSN: dsn})
	w.check(err)
	t.Cleanup(func() { _ = w.store.Close() })
	w.channel, err = w.store.PutChannel(t.Context(), storage.PutStakeholder{ID: "order-events", Name: "Order Events", Token: "channel-secret"})
	w.check(err)
	w.producer, err = w.store.PutProducer(t.Context(), storage.PutStakeholder{ID: "shop", Name: "Shop", Token: "producer-secret"})
	w.check(err)
	w.a, w.b = w.consumer("a"), w.consumer("b")
	return w
}

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) consumer(id string) *storage.Consumer {
	w.t.Helper()
	k, err := w.store.PutConsumer(w.t.Context(), storage.PutConsumer{
		PutStakeholder: storage.PutStakeholder{ID: id, Name: id, Token: "consumer-secret"},
		ChannelKey:     w.channel.Key, Type: storage.TypePush, CallbackURL: "http://localhost/" + id,
	})
	w.check(err)
	return k
}

func (w *world) exec(query string, args ...any) {
	w.t.Helper()
	_, err := w.store.DB().ExecContext(w.t.Context(), query, args...)
	w.check(err)
}

func (w *world) number(query string, args ...any) (n int64) {
	w.t.Helper()
	w.check(w.store.DB().QueryRowContext(w.t.Context(), query, args...).Scan(&n))
	return n
}

// message stores n messages of that age with a job for each consumer, ends each job with that consumer's verdict, and
// returns the messages' ids.
func (w *world) message(n int, age time.Duration, verdicts ...storage.Verdict) (ids []string) {
	w.t.Helper()
	lease := storage.Lease{Owner: storage.NewID(), Token: 1, For: time.Minute}
	var msgs []*storage.NewMessage
	var outcomes []storage.Outcome
	for range n {
		w.made++
		at := time.Now().Add(-age)
		m := &storage.NewMessage{
			Key: storage.ID(xid.NewWithTime(at)), ChannelKey: w.channel.Key, ProducerKey: w.producer.Key,
			MessageID: fmt.Sprintf("message-%d", w.made), ContentType: "text/plain", Priority: 3,
			Headers: map[string]string{"X-Order": "4711"}, Body: []byte("a <body> & more"),
		}
		for i, v := range verdicts {
			j := storage.NewJob{ID: storage.NewID(), ConsumerKey: []*storage.Consumer{w.a, w.b}[i].Key, Leased: true}
			m.Jobs = append(m.Jobs, j)
			if v != 0 {
				outcomes = append(outcomes, storage.Outcome{JobID: j.ID, Token: 1, ConsumerKey: j.ConsumerKey, Verdict: v, ErrorClass: "http_5xx", Error: "500"})
			}
		}
		msgs = append(msgs, m)
		ids = append(ids, m.MessageID)
	}
	w.check(w.store.Accept(w.t.Context(), 1, lease, msgs))
	if len(outcomes) > 0 {
		lost, err := w.store.Finish(w.t.Context(), 1, outcomes)
		w.check(err)
		if len(lost) > 0 {
			w.t.Fatalf("%d leases lost", len(lost))
		}
	}
	for _, m := range msgs {
		w.exec(`UPDATE message SET receivedAt = NOW(6) - INTERVAL ? SECOND, dispatchedAt = NOW(6) - INTERVAL ? SECOND WHERE id = ?`,
			int64(age/time.Second), int64(age/time.Second), m.Key)
	}
	return ids
}

// left lists the messages that are in the database.
func (w *world) left() []string {
	w.t.Helper()
	rows, err := w.store.DB().QueryContext(w.t.Context(), `SELECT messageId FROM message`)
	w.check(err)
	defer rows.Close()
	var out []string
	for rows.Next() {
		var id string
		w.check(rows.Scan(&id))
		out = append(out, id)
	}
	w.check(rows.Err())
	slices.Sort(out)
	return out
}

func (w *world) wantLeft(ids ...[]string) {
	w.t.Helper()
	want := slices.Concat(ids...)
	slices.Sort(want)
	if got := w.left(); !slices.Equal(got, want) {
		w.t.Errorf("in the database are %v, want %v", got, want)
	}
	orphans := w.number(`SELECT (SELECT COUNT(*) FROM message_payload p LEFT JOIN message m ON m.id = p.messageId WHERE m.id IS NULL)
		+ (SELECT COUNT(*) FROM job j LEFT JOIN message m ON m.id = j.messageId WHERE m.id IS NULL)
		+ (SELECT COUNT(*) FROM schedule s LEFT JOIN message m ON m.id = s.messageId WHERE m.id IS NULL)`)
	if orphans != 0 {
		w.t.Errorf("%d rows without their message", orphans)
	}
}

// archive is an instance that keeps messages for 30 days and was not started.
func (w *world) archive(change func(*Options)) *Archive {
	w.t.Helper()
	o := Options{Store: w.store, RetentionDays: 30, Node: "node-1", Interval: time.Hour, LockTTL: 2 * time.Second, Log: slog.New(slog.DiscardHandler)}
	change(&o)
	a, err := New(o)
	w.check(err)
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			w.t.Error(err)
		}
	})
	return a
}

func into(folder string) func(*Options) { return func(o *Options) { o.Destination = folder } }

// files reads the archive files of a folder.
func (w *world) files(folder string) map[string][]byte {
	w.t.Helper()
	entries, err := os.ReadDir(folder)
	w.check(err)
	out := map[string][]byte{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(folder, e.Name()))
		w.check(err)
		out[e.Name()] = b
	}
	return out
}

// blobs reads the archive files of a bucket.
func (w *world) blobs(b *blob.Bucket) map[string][]byte {
	w.t.Helper()
	out := map[string][]byte{}
	list := b.List(nil)
	for {
		o, err := list.Next(w.t.Context())
		if errors.Is(err, io.EOF) {
			return out
		}
		w.check(err)
		out[o.Key], err = b.ReadAll(w.t.Context(), o.Key)
		w.check(err)
	}
}

// records parses all lines.
func (w *world) records(files map[string][]byte) (out []Record) {
	w.t.Helper()
	for name, content := range files {
		if !strings.HasSuffix(name, ".jsonl") || !bytes.HasSuffix(content, []byte("\n")) {
			w.t.Errorf("file %s is no finished archive file", name)
		}
		lines := bufio.NewScanner(bytes.NewReader(content))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var r Record
			dec := json.NewDecoder(bytes.NewReader(lines.Bytes()))
			dec.DisallowUnknownFields()
			w.check(dec.Decode(&r))
			out = append(out, r)
		}
		w.check(lines.Err())
	}
	return out
}

func (w *world) wantArchived(files map[string][]byte, ids ...[]string) {
	w.t.Helper()
	want := slices.Concat(ids...)
	var got []string
	for _, r := range w.records(files) {
		got = append(got, r.MessageID)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.t.Errorf("archived are %v, want %v", got, want)
	}
}

// soon waits until a condition holds.
func soon(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
