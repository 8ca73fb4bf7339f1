package hmac_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/engine/durable"
	"github.com/redrive-mq/redrive/engine/hmac"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

func TestMain(m *testing.M) { storagetest.Main(m) }

var quiet = slog.New(slog.DiscardHandler)

// world is a database with the channel orders, whose consumer is email.
type world struct {
	*storage.Store
	t       *testing.T
	dsn     string
	channel *storage.Channel
	email   *storage.Consumer
	told    *channel
	queue   *queue
}

const emailSubject = "consumer:orders/email"

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dsn: storagetest.DSN(t), told: &channel{messages: map[string][]byte{}}, queue: &queue{ids: map[string][]byte{}, put: make(chan string, 100)}}
	w.Store = w.open()
	var err error
	w.channel, err = w.PutChannel(t.Context(), storage.PutStakeholder{ID: "orders", Name: "Orders", Token: "t"})
	w.ok(err)
	w.email = w.consumer("email")
	return w
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) open() *storage.Store {
	w.t.Helper()
	s, err := storage.Open(storage.Options{DSN: w.dsn, Log: quiet})
	w.ok(err)
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

func (w *world) consumer(id string) *storage.Consumer {
	w.t.Helper()
	k, err := w.PutConsumer(w.t.Context(), storage.PutConsumer{
		PutStakeholder: storage.PutStakeholder{ID: id, Name: id, Token: "t"}, ChannelKey: w.channel.Key, Type: storage.TypePush, CallbackURL: "http://k.example",
	})
	w.ok(err)
	return k
}

// runtime is one process's; stop ends it before the test does.
func (w *world) runtime(store *storage.Store, o hmac.Options) (rt *engine.Runtime, stop func()) {
	w.t.Helper()
	runner, err := durable.New(store.DB(), durable.Options{Log: quiet, Idle: 50 * time.Millisecond, StopTimeout: 10 * time.Second})
	w.ok(err)
	publisher, err := engine.Lookup(engine.Publisher)
	w.ok(err)
	rt, err = engine.NewRuntime(engine.RuntimeOptions{Context: publisher, Tables: store, Queue: w.queue, Durable: runner, Log: quiet})
	w.ok(err)
	if o.Store == nil {
		o.Store = store
	}
	if o.NotifyChannel == "" {
		o.NotifyChannel, o.Forward = "operations", w.told.forward
	}
	o.Queue = rt
	w.ok(rt.Register(hmac.New(o)))
	rt.Start(context.WithoutCancel(w.t.Context()))
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		w.ok(rt.Stop(ctx))
	})
	w.t.Cleanup(stop)
	return rt, stop
}

func rotate(ctx context.Context, rt *engine.Runtime, correlationID, instance string) engine.Outcome {
	return rt.Execute(ctx, hmac.Name, storage.ClaimedJob{MessageID: correlationID, Body: fmt.Appendf(nil, `{"instanceId":%q}`, instance)})
}

func (w *world) done(o engine.Outcome) {
	w.t.Helper()
	if o.Err != nil || o.Pending {
		w.t.Fatalf("%+v", o)
	}
}

func (w *world) signing(consumer string) storage.SigningSecrets {
	w.t.Helper()
	cat, err := w.Catalog(w.t.Context())
	w.ok(err)
	ch, _ := cat.Channel("orders")
	k, ok := cat.Consumer(ch, consumer)
	if !ok {
		w.t.Fatalf("there is no %s", consumer)
	}
	return k.Signing
}

func (w *world) secrets() (n int) {
	w.t.Helper()
	w.ok(w.DB().QueryRowContext(w.t.Context(), `SELECT COUNT(*) FROM signing_secret`).Scan(&n))
	return n
}

// age makes a consumer's current secret older.
func (w *world) age(k *storage.Consumer, days int) {
	w.t.Helper()
	_, err := w.DB().ExecContext(w.t.Context(), `UPDATE signing_secret SET createdAt = createdAt - INTERVAL ? DAY WHERE kind = 1 AND subjectId = ?`, days, k.Key)
	w.ok(err)
}

func (w *world) history(correlationID, instance string) map[string]storage.HistoryEntry {
	w.t.Helper()
	entries, _, err := w.ListHistory(w.t.Context(), storage.HistoryFilter{CorrelationID: correlationID, InstanceID: instance}, nil, 100)
	w.ok(err)
	out := map[string]storage.HistoryEntry{}
	for _, e := range entries {
		full, err := w.HistoryEntry(w.t.Context(), e.Engine, e.RowKey)
		w.ok(err)
		out[e.Operation+" "+string(e.Status)] = *full
	}
	if len(out) != len(entries) {
		w.t.Errorf("%d entries, some of them twice: %v", len(entries), entries)
	}
	return out
}

// channel keeps a message once, as the broker's does.
type channel struct {
	mu       sync.Mutex
	messages map[string][]byte
	calls    int
	failing  bool
}

func (c *channel) forward(_ context.Context, channelID, messageID string, body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls++; c.failing || channelID != "operations" {
		return errors.New("no such channel")
	}
	if _, there := c.messages[messageID]; !there {
		c.messages[messageID] = body
	}
	return nil
}

func (c *channel) all() map[string][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.messages
}

func (c *channel) fail(failing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing = failing
}

// queue takes a message once, as the broker's does.
type queue struct {
	mu  sync.Mutex
	ids map[string][]byte
	put chan string // ids, as they come for the first time
}

func (q *queue) Put(_ context.Context, _, name, id string, body []byte) (created bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, there := q.ids[id]; there || name != "hmac-rotation-queue" {
		return false, nil
	}
	q.ids[id] = body
	q.put <- id
	return true, nil
}

// drain takes out what was put, without waiting.
func (q *queue) drain() (jobs []storage.ClaimedJob) {
	for {
		select {
		case id := <-q.put:
			q.mu.Lock()
			jobs = append(jobs, storage.ClaimedJob{MessageID: id, Body: q.ids[id]})
			q.mu.Unlock()
		default:
			return jobs
		}
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.signing("email")
	rt, _ := w.runtime(w.Store, hmac.Options{})
	w.done(rotate(t.Context(), rt, "c-1", emailSubject))
	after := w.signing("email")
	if after.Current() == before.Current() || w.secrets() != 2 {
		t.Errorf("the secret is %s, before %s; there are %d", after.Current(), before.Current(), w.secrets())
	}
	// Both are valid: what the former signed verifies, and what is sent now verifies with the former.
	for _, pair := range [][2]storage.SigningSecrets{{before, after}, {after, before}} {
		if at, signatures := pair[0].Sign("m", []byte("body")); !pair[1].Verify("m", at, signatures, []byte("body")) {
			t.Errorf("%s does not verify", signatures)
		}
	}
	entries := w.history("c-1", emailSubject)
	var out struct {
		SecretID             string
		CreatedAt, RetiresAt time.Time
	}
	w.ok(json.Unmarshal(entries["rotate Succeeded"].Output, &out))
	if len(entries) != 2 || out.SecretID != after.Current().String() || out.RetiresAt.Sub(out.CreatedAt) != 24*time.Hour || entries["notify Succeeded"].Output == nil {
		t.Errorf("the history has %d entries, %+v", len(entries), out)
	}
	told := w.told.all()
	want := fmt.Sprintf(`{"type":"signing-secret.rotated","timestamp":%q,"data":{"subject":"consumer:orders/email","channelId":"orders","consumerId":"email","secretId":%q,"retiresAt":%q}}`,
		out.CreatedAt.Format(time.RFC3339Nano), out.SecretID, out.RetiresAt.Format(time.RFC3339Nano))
	if got := told["signing-secret-rotated-"+out.SecretID]; len(told) != 1 || string(got) != want {
		t.Errorf("told:\n%s\nwant\n%s", got, want)
	}
	w.done(rotate(t.Context(), rt, "c-1", emailSubject)) // the message again
	if w.secrets() != 2 || len(w.told.all()) != 1 {
		t.Errorf("repeated, there are %d secrets", w.secrets())
	}
	w.done(rotate(t.Context(), rt, "c-2", emailSubject)) // another one
	if w.secrets() != 3 || len(w.told.all()) != 2 {
		t.Errorf("rotated twice, there are %d secrets", w.secrets())
	}
	w.nowhere(before, after, w.signing("email"))
}

// base64Text finds what may be encoded bytes in JSON.
var base64Text = regexp.MustCompile(`[A-Za-z0-9+/]{16,}={0,2}`)

// plain is a text with all that is encoded in it, however deep.
func plain(text string) string {
	out := text
	for _, part := range base64Text.FindAllString(text, -1) {
		if decoded, err := base64.StdEncoding.DecodeString(part); err == nil && utf8.Valid(decoded) {
			out += "\n" + plain(string(decoded))
		}
	}
	return out
}

// left reads all that runs leave behind, by where it is.
func (w *world) left() map[string]string {
	w.t.Helper()
	out := map[string]string{}
	for _, column := range [][2]string{
		{"workflow_history", "event"}, {"workflow_event", "event"}, {"workflow_activity", "event"},
		{"engineHistory", "COALESCE(Input, '')"}, {"engineHistory", "COALESCE(Output, '')"}, {"engineHistory", "COALESCE(Error, '')"},
	} {
		rows, err := w.DB().QueryContext(w.t.Context(), `SELECT `+column[1]+` FROM `+column[0])
		w.ok(err)
		for rows.Next() {
			var text string
			w.ok(rows.Scan(&text))
			out[column[0]] += plain(text)
		}
		w.ok(errors.Join(rows.Err(), rows.Close()))
	}
	for _, body := range w.told.all() {
		out["notifications"] += string(body)
	}
	return out
}

// nowhere looks for secrets in whatever runs leave behind.
func (w *world) nowhere(of ...storage.SigningSecrets) {
	w.t.Helper()
	left, id := w.left(), w.signing("email").Current().String()
	for where, text := range left {
		for _, signing := range of {
			revealed, ok := signing.Reveal()
			if !ok {
				w.t.Fatal("there is no secret")
			}
			if strings.Contains(text, strings.TrimPrefix(revealed.Secret, "whsec_")) {
				w.t.Errorf("%s has a secret", where)
			}
		}
		if !strings.Contains(text, id) {
			w.t.Errorf("%s has not even the secret's id, so a secret would not be found there", where)
		}
	}
	if len(left) != 3 {
		w.t.Errorf("%d places were looked at", len(left))
	}
}

// The former secret is deleted once its time is over.
func TestFormerSecretRetires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	before := w.signing("email")
	rt, _ := w.runtime(w.Store, hmac.Options{Overlap: time.Nanosecond})
	w.done(rotate(t.Context(), rt, "c-1", emailSubject))
	after := w.signing("email")
	if at, signatures := before.Sign("m", nil); after.Verify("m", at, signatures, nil) || w.secrets() != 1 {
		t.Errorf("the former secret is valid, or there: %d", w.secrets())
	}
}

func TestProducersSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := w.PutProducer(t.Context(), storage.PutStakeholder{ID: "a/b ü", Name: "p", Token: "t"})
	w.ok(err)
	rt, _ := w.runtime(w.Store, hmac.Options{})
	w.done(rotate(t.Context(), rt, "c-1", "producer:a%2Fb%20%C3%BC"))
	for _, body := range w.told.all() {
		if s := string(body); !strings.Contains(s, `"producerId":"a/b ü"`) || strings.Contains(s, "retiresAt") || strings.Contains(s, "consumerId") {
			t.Errorf("told: %s", s)
		}
	}
	if len(w.told.all()) != 1 || w.secrets() != 2 {
		t.Errorf("%d were told, there are %d secrets", len(w.told.all()), w.secrets())
	}
}

// dying rotates and never says so: as a process that is killed between a step's effect and its end.
type dying struct {
	*storage.Store
	rotated chan struct{}
}

func (d *dying) RotateSigningSecret(ctx context.Context, subject storage.SigningSubject, key string, overlap time.Duration) (storage.Rotation, error) {
	if _, err := d.Store.RotateSigningSecret(ctx, subject, key, overlap); err != nil {
		return storage.Rotation{}, err
	}
	close(d.rotated)
	<-ctx.Done()
	return storage.Rotation{}, ctx.Err()
}

func TestRotationGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := &dying{w.open(), make(chan struct{})}
	rt, stop := w.runtime(first.Store, hmac.Options{Store: first})
	ctx, cancel := context.WithCancel(t.Context())
	attempt := make(chan engine.Outcome, 1)
	go func() { attempt <- rotate(ctx, rt, "c-1", emailSubject) }()
	<-first.rotated
	cancel()
	if o := <-attempt; !o.Pending {
		t.Errorf("broken off: %+v", o)
	}
	stop()
	made := w.signing("email").Current()
	other, _ := w.runtime(w.Store, hmac.Options{})
	w.done(rotate(t.Context(), other, "c-1", emailSubject))
	if w.secrets() != 2 || w.signing("email").Current() != made || len(w.told.all()) != 1 {
		t.Errorf("there are %d secrets, %d were told", w.secrets(), len(w.told.all()))
	}
	if e := w.history("c-1", emailSubject); len(e) != 2 || e["rotate Succeeded"].RowKey == "" {
		t.Errorf("the history has %v", e)
	}
}

// A run that failed after it rotated is tried again, and rotates no second time.
func TestFailedNotificationIsMadeUpFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt, _ := w.runtime(w.Store, hmac.Options{})
	w.told.fail(true)
	o := rotate(t.Context(), rt, "c-1", emailSubject)
	if o.Err == nil || o.Fatal || !strings.Contains(o.Err.Error(), "no such channel") {
		t.Fatalf("%+v", o)
	}
	made := w.signing("email").Current()
	w.told.fail(false)
	w.done(rotate(t.Context(), rt, "c-1", emailSubject))
	if w.secrets() != 2 || w.signing("email").Current() != made || w.told.all()["signing-secret-rotated-"+made.String()] == nil {
		t.Errorf("there are %d secrets, %d were told", w.secrets(), len(w.told.all()))
	}
	e := w.history("c-1", emailSubject)
	if len(e) != 4 || e["rotate Failed"].RowKey == "" || e["notify Failed"].RowKey == "" || e["rotate Succeeded"].RowKey == "" || e["notify Succeeded"].RowKey == "" {
		t.Errorf("the history has %v", e)
	}
}

// Of all subjects those get a message whose secret is old, and each is rotated once, however many messages it gets.
func TestDueSubjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	old, young := w.consumer("old"), w.consumer("young")
	long := w.consumer(strings.Repeat("ü", 120)) // its subject is longer than an instance id can be
	w.age(old, 91)
	w.age(long, 91)
	w.age(young, 89)
	rt, _ := w.runtime(w.Store, hmac.Options{})
	var jobs []storage.ClaimedJob
	for _, correlation := range []string{"day-1", "day-1", "day-2"} { // the second finds the history
		w.done(rotate(t.Context(), rt, correlation, engine.PublisherInstance))
		jobs = append(jobs, w.queue.drain()...)
	}
	if len(jobs) != 4 {
		t.Fatalf("%d messages for two subjects on two days", len(jobs))
	}
	var out struct{ Subjects, Due int }
	w.ok(json.Unmarshal(w.history("day-1", engine.PublisherInstance)["rotate Succeeded"].Output, &out))
	if out.Subjects != 4 || out.Due != 2 {
		t.Errorf("the output is %+v", out)
	}
	for _, job := range jobs {
		w.done(rt.Execute(t.Context(), hmac.Name, job))
	}
	if w.secrets() != 4+2 || len(w.told.all()) != 2 {
		t.Errorf("there are %d secrets, %d were told", w.secrets(), len(w.told.all()))
	}
	if e := w.history("day-2", "consumer:orders/old"); len(e) != 2 {
		t.Errorf("the history of one that was due has %v", e)
	}
	// Nothing is due any more; who was deleted meanwhile is no error.
	w.done(rotate(t.Context(), rt, "day-3", engine.PublisherInstance))
	if jobs := w.queue.drain(); len(jobs) != 0 {
		t.Errorf("%d messages more", len(jobs))
	}
	w.age(young, 2)
	w.done(rotate(t.Context(), rt, "day-4", engine.PublisherInstance))
	jobs = w.queue.drain()
	w.ok(w.DeleteConsumer(t.Context(), young.Key, young.ChangedAt))
	if len(jobs) != 1 {
		t.Fatalf("%d messages for one subject", len(jobs))
	}
	w.done(rt.Execute(t.Context(), hmac.Name, jobs[0]))
}

func TestFatalMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt, _ := w.runtime(w.Store, hmac.Options{})
	for i, tc := range []struct{ body, says string }{
		{`{"instanceId":"consumer:orders/nobody"}`, "there is no consumer:orders/nobody"},
		{`{"instanceId":"consumer:nowhere/email"}`, "there is no consumer:nowhere/email"},
		{`{"instanceId":"producer:nobody"}`, "there is no producer:nobody"},
		{`{"instanceId":"tenant-7"}`, "is no subject"},
		{`{"instanceId":"consumer:orders/email","operation":"notify"}`, "a part of rotate"},
		{`{"instanceId":"consumer:orders/email","input":[]}`, "the input"},
	} {
		o := rt.Execute(t.Context(), hmac.Name, storage.ClaimedJob{MessageID: fmt.Sprint("m", i), Body: []byte(tc.body)})
		if !o.Fatal || o.Err == nil || !strings.Contains(o.Err.Error(), tc.says) {
			t.Errorf("%s: %+v, want %q", tc.body, o, tc.says)
		}
	}
	if w.secrets() != 1 || len(w.told.all()) != 0 {
		t.Errorf("there are %d secrets, %d were told", w.secrets(), len(w.told.all()))
	}
}

func TestSchedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.age(w.email, 2)
	found := 0
	runtimes := [2]*engine.Runtime{}
	for i, store := range []*storage.Store{w.Store, w.open()} {
		runtimes[i], _ = w.runtime(store, hmac.Options{Every: 24 * time.Hour, MaxAge: 24 * time.Hour})
	}
	timed := storage.ClaimedJob{MessageID: <-w.queue.put}
	w.queue.mu.Lock()
	timed.Body = w.queue.ids[timed.MessageID]
	w.queue.mu.Unlock()
	w.done(runtimes[0].Execute(t.Context(), hmac.Name, timed))
	for _, job := range w.queue.drain() {
		found++
		w.done(runtimes[1].Execute(t.Context(), hmac.Name, job))
	}
	if found != 1 || w.secrets() != 2 {
		t.Errorf("%d were due, there are %d secrets", found, w.secrets())
	}
}

func TestNobodyToTell(t *testing.T) {
	t.Parallel()
	rt := &engine.Runtime{}
	for name, o := range map[string]hmac.Options{
		"a store": {Queue: rt}, "a queue": {Store: &storage.Store{}}, "a notifier": {Store: &storage.Store{}, Queue: rt, NotifyChannel: "c"},
	} {
		if hmac.New(o).Run != nil {
			t.Errorf("it would run without %s", name)
		}
	}
	if d := hmac.New(hmac.Options{Store: &storage.Store{}, Queue: rt}); d.Run == nil || d.Every != 0 || d.MaxRetryAttempts != 3 {
		t.Errorf("%+v", d)
	}
}
