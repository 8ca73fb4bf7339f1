package app_test

import (
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// Consumers that were made by a version without signatures get their secret as instances start, and their deliveries are
// signed with it. An instance with the wrong key gives nobody anything.
func TestConsumersGetTheirSecretAtTheStart(t *testing.T) {
	t.Parallel()
	const key, wrongKey = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	cfg := testConfig(storagetest.DSN(t))
	cfg.SealKey = key
	first := start(t, cfg)
	first.stage()
	hook := newSink(t)
	first.addConsumer("k", "push", hook.URL)
	first.stop(t)
	store, err := storage.Open(storage.Options{DSN: cfg.DatabaseDSN})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	secrets := func() (n int) {
		t.Helper()
		if err := store.DB().QueryRowContext(t.Context(), `SELECT COUNT(*) FROM signing_secret`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if _, err := store.DB().ExecContext(t.Context(), `DELETE FROM signing_secret`); err != nil {
		t.Fatal(err)
	}

	cfg.SealKey = wrongKey
	wrong := launch(t, cfg)
	select {
	case <-wrong.done:
	case <-time.After(patience):
		t.Fatal("it goes on without the key")
	}
	if n := secrets(); n != 0 {
		t.Errorf("an instance with the wrong key made %d secrets", n)
	}

	cfg.SealKey = key
	one, two := launch(t, cfg), launch(t, cfg)
	one.awaitReady(t)
	two.awaitReady(t)
	if n := secrets(); n != 1 {
		t.Errorf("%d secrets of one consumer", n)
	}
	var shown struct{ Secret string }
	one.do("POST", channel+"/consumer/k/signing-secret", "", asConsumer("k")...).want(200).into(&shown)
	two.broadcast("m1", orderBody(1)).want(201)
	eventually(t, "the delivery", func() bool { return len(hook.of("m1")) == 1 })
	verifier, err := standardwebhooks.NewWebhook(shown.Secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := verifier.Verify([]byte(orderBody(1)), hook.of("m1")[0].header); err != nil {
		t.Error(err)
	}
}
