package web_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/web"
)

const (
	producerSecret = "/producer/p/signing-secret"
	pushSecret     = "/channel/c/consumer/push/signing-secret"
)

func (a *api) rotate(subject, key string, overlap time.Duration) storage.Rotation {
	a.t.Helper()
	parsed, err := storage.ParseSigningSubject(subject)
	if err != nil {
		a.t.Fatal(err)
	}
	made, err := a.store.RotateSigningSecret(a.t.Context(), parsed, key, overlap)
	if err != nil {
		a.t.Fatal(err)
	}
	return made
}

func (a *api) producerSecret() string {
	a.t.Helper()
	return a.call("POST", producerSecret, "", ours()...).want(200).json()["secret"].(string)
}

// signed are the headers of a broadcast that the reference library signed.
func signed(t *testing.T, secret, id string, at time.Time, body string) []string {
	t.Helper()
	hook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	signature, err := hook.Sign(id, at, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return []string{"webhook-id: " + id, fmt.Sprint("webhook-timestamp: ", at.Unix()), "webhook-signature: " + signature}
}

func TestProducersWithASecretSign(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a := newAPI(t, func(o *web.Options) { o.Now = func() time.Time { return now } })
	a.send("before", "Webhook-Id: a.b", "Webhook-Signature: nonsense") // without a secret nobody looks
	a.rotate("producer:p", "r1", 0)
	former := a.producerSecret()
	a.rotate("producer:p", "r2", time.Hour)
	current := a.producerSecret()
	stored := 0
	a.broker.accept = func(context.Context, web.Broadcast) (string, error) { stored++; return "m", nil }

	const body = `{"n":1}`
	good := signed(t, current, "msg_1", now, body)
	without := func(i int) []string { return append(append([]string{}, good[:i]...), good[i+1:]...) }
	with := func(i int, header string) []string { return append(without(i), header) }
	for _, tc := range []struct {
		name    string
		headers []string
		want    int
	}{
		{"the current secret", good, 201},
		{"a retiring secret", signed(t, former, "msg_1", now, body), 201},
		{"4 minutes ago", signed(t, current, "msg_1", now.Add(-4*time.Minute), body), 201},
		{"in 4 minutes", signed(t, current, "msg_1", now.Add(4*time.Minute), body), 201},
		{"several signatures", with(2, "webhook-signature: v1a,x "+strings.TrimPrefix(signed(t, former, "other", now, body)[2], "webhook-signature: ")+" "+strings.TrimPrefix(good[2], "webhook-signature: ")), 201},
		{"nothing", nil, 401},
		{"no id", without(0), 401},
		{"no timestamp", without(1), 401},
		{"no signature", without(2), 401},
		{"an empty signature", with(2, "webhook-signature: "), 401},
		{"another id", with(0, "webhook-id: msg_2"), 401},
		{"an id with a full stop", signed(t, current, "msg.1", now, body), 401},
		{"6 minutes ago", signed(t, current, "msg_1", now.Add(-6*time.Minute), body), 401},
		{"in 6 minutes", signed(t, current, "msg_1", now.Add(6*time.Minute), body), 401},
		{"another time", with(1, fmt.Sprint("webhook-timestamp: ", now.Unix()+1)), 401},
		{"no time", with(1, "webhook-timestamp: now"), 401},
		{"a negative time", with(1, "webhook-timestamp: -1"), 401},
		{"a time without end", with(1, "webhook-timestamp: 18446744073709551615"), 401},
		{"another secret", signed(t, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "msg_1", now, body), 401},
		{"another body", signed(t, current, "msg_1", now, body+" "), 401},
		{"another version", with(2, strings.Replace(good[2], "v1,", "v2,", 1)), 401},
	} {
		stored = 0
		got := a.call("POST", "/channel/c/broadcast", body, ours(tc.headers...)...)
		if got.StatusCode != tc.want || stored != map[int]int{201: 1, 401: 0}[tc.want] {
			t.Errorf("%s: answered %d %q, stored %d times", tc.name, got.StatusCode, got.body, stored)
		}
		if tc.want == 401 && !strings.Contains(got.body, "webhook-") {
			t.Errorf("%s: the answer does not say what is wrong: %q", tc.name, got.body)
		}
	}
	// Tokens come first: a signature does not stand in for them.
	a.call("POST", "/channel/c/broadcast", body, append(good, ours()[:2]...)...).want(403)
	// The other producers go on as before.
	a.put("/producer/q", "token=q-token")
	a.call("POST", "/channel/c/broadcast", body, ours()[0], "X-Broker-Producer-ID: q", "X-Broker-Producer-Token: q-token").want(201)
}

// A rotation that this process has not heard of refuses nobody, and lets nobody through either.
func TestSignaturesByARememberedCatalog(t *testing.T) {
	t.Parallel()
	stale := errors.New("stale")
	a := newAPI(t, func(o *web.Options) { o.Stale = func(err error) bool { return errors.Is(err, stale) } })
	elsewhere, err := storage.Open(storage.Options{DSN: a.dsn})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = elsewhere.Close() }()
	producer := storage.SigningSubject{Kind: storage.SigningProducer, ID: "p"}
	secretNow := func() string {
		t.Helper()
		cat, err := elsewhere.Catalog(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p, _ := cat.Producer("p")
		revealed, _ := p.Signing.Reveal()
		return revealed.Secret
	}
	// As the broker does: it compares with what the database says.
	accepted := 0
	a.broker.accept = func(ctx context.Context, b web.Broadcast) (string, error) {
		cat, err := elsewhere.Catalog(ctx)
		if err != nil {
			return "", err
		}
		if p, _ := cat.Producer("p"); p.Signing.Current() != b.Producer.Signing.Current() {
			return "", stale
		}
		accepted++
		return "m", nil
	}
	remember := func() {
		t.Helper()
		if _, err := a.store.Catalog(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	rotate := func(key string, overlap time.Duration) {
		t.Helper()
		if _, err := elsewhere.RotateSigningSecret(t.Context(), producer, key, overlap); err != nil {
			t.Fatal(err)
		}
	}
	send := func(what string, want int, headers ...string) {
		t.Helper()
		before := accepted
		got := a.call("POST", "/channel/c/broadcast", "x", ours(headers...)...)
		if got.StatusCode != want || (accepted > before) != (want == 201) {
			t.Errorf("%s: %d %q, accepted %t", what, got.StatusCode, got.body, accepted > before)
		}
	}
	remember()
	send("without a secret", 201)
	rotate("r1", 0)
	send("unsigned, after the first rotation", 401)
	remember()
	first := secretNow()
	rotate("r2", 0)
	send("signed with a secret that has just come", 201, signed(t, secretNow(), "m", time.Now(), "x")...)
	rotate("r3", 0)
	send("signed with a secret that has just gone", 401, signed(t, first, "m", time.Now(), "x")...)
}

func TestOwnersSeeTheirSecret(t *testing.T) {
	t.Parallel()
	var log logBuffer
	a := newAPI(t, log.at(slog.LevelDebug))
	got := a.call("POST", pushSecret, "", as("push")...).want(200)
	first := got.json()
	if got.Header.Get("Cache-Control") != "no-store" || fmt.Sprint(first["retiring"]) != "[]" {
		t.Errorf("answered %s, Cache-Control %q", got.body, got.Header.Get("Cache-Control"))
	}
	made := a.rotate("consumer:c/push", "r", time.Hour)
	second := a.call("POST", pushSecret, "", as("push")...).want(200).json()
	if second["secret"] == first["secret"] || second["createdAt"] != made.CreatedAt.Format(time.RFC3339Nano) ||
		fmt.Sprint(second["retiring"]) != "[map[retiresAt:"+made.FormerUntil.Format(time.RFC3339Nano)+"]]" {
		t.Errorf("after a rotation %v, want %+v", second, made)
	}
	if other := a.call("POST", "/channel/c/consumer/pull/signing-secret", "", as("pull")...).want(200).json(); other["secret"] == second["secret"] {
		t.Error("two consumers have one secret")
	}

	a.call("POST", producerSecret, "", ours()...).want(404)
	a.rotate("producer:p", "r", 0)
	ofProducer := a.producerSecret()

	for _, tc := range []struct {
		path    string
		headers []string
		want    int
	}{
		{pushSecret, nil, 403},
		{pushSecret, as("push")[:1], 403},
		{pushSecret, as("push")[1:], 403},
		{pushSecret, as("pull"), 403},
		{"/channel/nowhere/consumer/push/signing-secret", as("push"), 404},
		{"/channel/c/consumer/nobody/signing-secret", as("push"), 404},
		{"/channel/c/consumer/%0A/signing-secret", as("push"), 400},
		{producerSecret, nil, 403},
		{producerSecret, []string{"X-Broker-Producer-Token: c-token"}, 403},
		{"/producer/nobody/signing-secret", ours(), 404},
	} {
		got := a.call("POST", tc.path, "", tc.headers...)
		if got.problem(tc.want); strings.Contains(got.body, "whsec_") {
			t.Errorf("%s with %v: %s", tc.path, tc.headers, got.body)
		}
	}
	for _, path := range []string{pushSecret, producerSecret} {
		a.get(path, append(as("push"), ours()...)...).problem(405)
	}
	if got := a.get("/producer/signing-secret").want(404); got.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("of a producer of that id: %s", got.Header.Get("Content-Type"))
	}
	for _, path := range []string{"/channel/c/consumer/push", "/producer/p", "/_status", "/channel/c"} {
		if body := a.get(path).want(200).body; strings.Contains(body, "whsec_") {
			t.Errorf("%s shows %s", path, body)
		}
	}
	for _, secret := range []any{first["secret"], second["secret"], ofProducer} {
		if strings.Contains(log.String(), secret.(string)) || strings.Contains(log.String(), "whsec_") {
			t.Error("a secret is in the log")
		}
	}
}

// What cannot be verified because the secret cannot be opened is not let through, and is nobody else's trouble.
func TestSecretsThatThisInstanceCannotRead(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	keyed, err := storage.Open(storage.Options{DSN: a.dsn, SealKeys: [][]byte{bytes.Repeat([]byte{7}, 32)}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = keyed.Close() }()
	for _, subject := range []storage.SigningSubject{{Kind: storage.SigningProducer, ID: "p"}, {Kind: storage.SigningConsumer, ChannelID: "c", ID: "push"}} {
		if _, err := keyed.RotateSigningSecret(t.Context(), subject, "r", time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	a.call("POST", "/channel/c/broadcast", "x", ours()...).want(503)
	a.call("POST", producerSecret, "", ours()...).want(503)
	a.call("POST", pushSecret, "", as("push")...).want(503)
	a.call("POST", "/channel/c/consumer/pull/signing-secret", "", as("pull")...).want(200)
}
