package broker_test

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/redrive-mq/redrive/broker"
	"github.com/redrive-mq/redrive/storage"
)

// secret is the current secret of a consumer, as its owner gets it.
func (w *world) secret(k *storage.Consumer) string {
	w.t.Helper()
	catalog, err := w.open().Catalog(w.ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	k, _ = catalog.ConsumerByKey(k.Key)
	revealed, ok := k.Signing.Reveal()
	if !ok {
		w.t.Fatal("no secret")
	}
	return revealed.Secret
}

func (w *world) rotate(subject storage.SigningSubject, key string, overlap time.Duration) storage.Rotation {
	w.t.Helper()
	made, err := w.open().RotateSigningSecret(w.ctx, subject, key, overlap)
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

// verifies tells whether the reference library takes what arrived for signed with the secret.
func (r receipt) verifies(t *testing.T, secret string) bool {
	t.Helper()
	hook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	return hook.Verify([]byte(r.body), r.header) == nil
}

// A consumer verifies every delivery with the reference library, whichever of its secrets it knows: before, during and after a
// rotation that another instance makes.
func TestDeliveriesAreSigned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, ok)
	k := w.consumer("k", s.URL, storage.TypePush)
	subject := storage.SigningSubject{Kind: storage.SigningConsumer, ChannelID: "orders", ID: "k"}
	b := w.start(w.fast())
	// Broadcasts until a delivery is signed with the newest secret: other instances' rotations are seen at the next poll.
	deliver := func(newest string) receipt {
		t.Helper()
		for range 1000 {
			n := len(s.seen())
			w.broadcast(b, broker.Broadcast{Body: []byte(`{"n":1}`)})
			if got := s.wait(t, n+1)[n]; got.verifies(t, newest) {
				return got
			}
		}
		t.Fatal("no delivery is signed with the newest secret")
		return receipt{}
	}
	former := w.secret(k)
	w.broadcast(b, broker.Broadcast{Body: []byte("the first")})
	first := s.wait(t, 1)[0]
	if !first.verifies(t, former) || strings.Count(first.header.Get("webhook-signature"), "v1,") != 1 {
		t.Errorf("the first delivery has %q", first.header)
	}
	altered := first
	altered.body += "!"
	if altered.verifies(t, former) {
		t.Error("an altered body verifies")
	}

	w.rotate(subject, "r1", time.Hour)
	current := w.secret(k)
	during := deliver(current)
	if !during.verifies(t, former) || strings.Count(during.header.Get("webhook-signature"), "v1,") != 2 {
		t.Errorf("while both are valid: %q", during.header.Get("webhook-signature"))
	}
	made := w.rotate(subject, "r2", 200*time.Millisecond)
	last := w.secret(k)
	eventually(t, func() bool { now, err := w.store.Now(w.ctx); return err == nil && now.After(made.FormerUntil) })
	if after := deliver(last); after.verifies(t, current) || after.verifies(t, former) || strings.Contains(after.header.Get("webhook-signature"), " ") {
		t.Errorf("after the former ones retired: %q", after.header.Get("webhook-signature"))
	}
}

// The id is the job's, the same in every attempt; the time is the attempt's; no metadata header stands in for a signature.
func TestSignatureOfEachAttempt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, fail)
	k := w.consumer("k", s.URL, storage.TypePush)
	o := w.fast()
	o.MaxRetry, o.Backoff = 1, []time.Duration{1100 * time.Millisecond}
	b := w.start(o)
	w.broadcast(b, broker.Broadcast{Body: []byte("x"), Headers: map[string]string{"webhook-id": "forged", "WEBHOOK-Signature": "v1,forged", "Webhook-Extra": "1", "X-Fine": "1"}})
	w.waitJobs(k, storage.StatusDead, 1)
	jobs, _, err := w.store.DeadJobs(w.ctx, k.Key, nil, 10)
	if err != nil || len(jobs) != 1 {
		t.Fatal(jobs, err)
	}
	secret, got := w.secret(k), s.seen()
	if len(got) != 2 {
		t.Fatalf("%d attempts", len(got))
	}
	var times []int64
	for _, r := range got {
		if !r.verifies(t, secret) || r.header.Get("webhook-id") != jobs[0].ID.String() || len(r.header.Values("webhook-id")) != 1 || len(r.header.Values("webhook-signature")) != 1 {
			t.Errorf("job %s: %v", jobs[0].ID, r.header)
		}
		if r.header.Get("Webhook-Extra") != "" || r.header.Get("X-Broker-Metadata-Headers") != "X-Fine" {
			t.Errorf("passed on as metadata: %v", r.header)
		}
		at, err := strconv.ParseInt(r.header.Get("webhook-timestamp"), 10, 64)
		if err != nil {
			t.Error(err)
		}
		times = append(times, at)
	}
	if times[1] <= times[0] {
		t.Errorf("two attempts a second apart are signed at %v", times)
	}
}

// A producer that was authenticated by secrets which were rotated meanwhile is to be authenticated again.
func TestRotationMakesAProducerStale(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := w.start(w.fast())
	w.rotate(storage.SigningSubject{Kind: storage.SigningProducer, ID: "shop"}, "r1", time.Hour)
	if _, err := b.Accept(w.ctx, broker.Broadcast{Channel: w.channel, Producer: w.producer}); !errors.Is(err, broker.ErrStale) {
		t.Errorf("accepted by what was known before the rotation: %v", err)
	}
	w.refresh()
	w.broadcast(b, broker.Broadcast{})
}

// Of a consumer without secrets, which no version makes, nothing is signed and nothing is passed on.
func TestNoSecretNoSignature(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := newSink(t, ok)
	w.consumer("k", s.URL, storage.TypePush)
	if _, err := w.db.ExecContext(w.ctx, `DELETE FROM signing_secret`); err != nil {
		t.Fatal(err)
	}
	b := w.start(w.fast())
	w.broadcast(b, broker.Broadcast{Headers: map[string]string{"webhook-id": "1", "webhook-signature": "v1,x"}})
	for name := range s.wait(t, 1)[0].header {
		if strings.HasPrefix(name, http.CanonicalHeaderKey("webhook-")) {
			t.Errorf("it has %s", name)
		}
	}
}
