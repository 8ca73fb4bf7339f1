package engine_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redrive-mq/redrive/engine"
	"github.com/redrive-mq/redrive/internal/outbound"
	"github.com/redrive-mq/redrive/storage"
	"github.com/redrive-mq/redrive/storage/storagetest"
)

// elsewhere is an engine that answers as the instance id says.
type elsewhere struct {
	mu    sync.Mutex
	posts map[string][]*http.Request // by instance
	polls map[string]int
	token []string
}

func (e *elsewhere) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	instance := r.URL.Query().Get("i")
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body)
		var m struct{ InstanceID, CorrelationID, Operation, Engine, RunID string }
		if json.Unmarshal(body, &m) != nil || m.CorrelationID == "" || m.Operation != "rotate" || m.Engine != "spn" || m.RunID == "" {
			http.Error(w, "what is "+string(body)+"?", http.StatusBadRequest)
			return
		}
		instance = m.InstanceID
		e.posts[instance] = append(e.posts[instance], r)
	} else {
		e.polls[instance]++
		e.token = append(e.token, r.Header.Get("Authorization"))
	}
	answer := func(code int, body string) { w.WriteHeader(code); _, _ = io.WriteString(w, body) }
	at := "/status?i=" + instance
	first := r.Method == http.MethodPost
	switch instance {
	case "at once":
		answer(200, `{"rotated":true}`)
	case "text":
		answer(201, "fine\n")
	case "long":
		answer(200, `"`+strings.Repeat("x", 256<<10)+`"`)
	case "long when escaped":
		answer(200, `"`+strings.Repeat("<", 250<<10)+`"`)
	case "verbose":
		if first {
			w.Header().Set("Location", at)
			answer(202, "")
		} else {
			answer(200, `{"status":"Completed","output":"`+strings.Repeat("<", 250<<10)+`"}`)
		}
	case "nothing":
		answer(204, "")
	case "location":
		if first {
			w.Header().Set("Location", at)
			answer(202, "accepted")
		} else if e.polls[instance] < 3 {
			answer(202, "")
		} else {
			answer(200, `{"runtimeStatus":"Completed","output":{"n":3}}`)
		}
	case "query":
		if first {
			answer(202, `{"id":"x","statusQueryGetUri":"http://`+r.Host+at+`"}`)
		} else if e.polls[instance] < 2 {
			answer(200, `{"runtimeStatus":"Running","output":null}`)
		} else if e.polls[instance] < 3 {
			answer(503, "deploying")
		} else {
			answer(200, `{"runtimeStatus":"Completed","output":null}`)
		}
	case "failed":
		if first {
			w.Header().Set("Location", at)
			answer(202, "")
		} else {
			answer(200, `{"runtimeStatus":"Failed","output":"the directory said no"}`)
		}
	case "gone":
		if first {
			w.Header().Set("Location", at)
			answer(202, "")
		} else {
			answer(404, "never heard of it")
		}
	case "lost":
		answer(202, "")
	case "redirect":
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	case "big":
		answer(200, strings.Repeat("x", 300<<10))
	default:
		answer(500, "out\nof order")
	}
}

func TestRemoteEngine(t *testing.T) {
	t.Parallel()
	e := &elsewhere{posts: map[string][]*http.Request{}, polls: map[string]int{}}
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	d, err := engine.Remote{
		URL: server.URL + "/run", Client: outbound.NewClient(outbound.Options{AllowPrivate: true}), Poll: 10 * time.Millisecond, Header: http.Header{"Authorization": {"Bearer x"}},
	}.Define(engine.Definition{Name: "spn"})
	check(t, err)
	w := newWorld(t, storagetest.DSN(t), d)
	for instance, want := range map[string]struct{ fails, output string }{
		"at once":  {"", `{"rotated":true}`},
		"text":     {"", `"fine"`},
		"nothing":  {"", ``},
		"location": {"", `{"n":3}`},
		"query":    {"", ``},
		"failed":   {`Failed: "the directory said no"`, ``},
		"gone":     {"404 Not Found: never heard of it", ``},
		"lost":     {"nobody can tell how it ends", ``},
		"redirect": {"302 Found", ``},
		"big":      {"", `"(left out: too long)"`},
		"long":     {"", `"(left out: too long)"`},

		"long when escaped": {"", `"(left out: too long)"`},
		"verbose":           {"", `"(left out: too long)"`},
		"broken":            {"500 Internal Server Error: out of order", ``},
	} {
		t.Run(instance, func(t *testing.T) {
			t.Parallel()
			body, err := json.Marshal(engine.Message{InstanceID: instance})
			check(t, err)
			o := w.Execute(t.Context(), "spn", message("m "+instance, string(body)))
			if o.Pending || (o.Err == nil) != (want.fails == "") || o.Err != nil && !strings.Contains(o.Err.Error(), want.fails) {
				t.Fatalf("%+v", o)
			}
			entries := w.history(t, storage.HistoryFilter{InstanceID: instance})
			if len(entries) != 1 {
				t.Fatalf("the history has %+v", entries)
			}
			full, err := w.store.HistoryEntry(t.Context(), "spn", entries[0].RowKey)
			check(t, err)
			if string(full.Output) != want.output || !strings.Contains(full.Error, want.fails) {
				t.Errorf("the history has %s, %s", full.Output, full.Error)
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			if posts := e.posts[instance]; len(posts) != 1 || posts[0].Header.Get("Idempotency-Key") == "" || posts[0].Header.Get("Authorization") != "Bearer x" {
				t.Errorf("%d requests: %v", len(posts), posts)
			}
		})
	}
}

// What proves who asks is not shown to another host, wherever a status URL points.
func TestRemoteEngineKeepsItsTokenToItself(t *testing.T) {
	t.Parallel()
	var seen http.Header
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header
		_, _ = io.WriteString(w, `{"status":"Completed"}`)
	}))
	t.Cleanup(other.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", other.URL)
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(server.Close)
	d, err := engine.Remote{URL: server.URL, Client: http.DefaultClient, Poll: time.Millisecond, Header: http.Header{"Authorization": {"Bearer x"}}}.
		Define(engine.Definition{Name: "spn"})
	check(t, err)
	w := newWorld(t, storagetest.DSN(t), d)
	if o := w.Execute(t.Context(), "spn", message("m", `{}`)); o.Err != nil || o.Pending {
		t.Fatalf("%+v", o)
	}
	if seen == nil || seen.Get("Authorization") != "" {
		t.Errorf("the other host was sent %v", seen)
	}
	for _, bad := range []string{"", "ftp://a", "/run", "http://", "http://joe:secret@a/"} {
		if _, err := (engine.Remote{URL: bad, Client: http.DefaultClient}).Define(engine.Definition{Name: "spn"}); err == nil {
			t.Errorf("%q is taken for an endpoint", bad)
		}
	}
}

// A host is the same with its default port, and in capitals.
func TestRemoteEngineKnowsItsHost(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer x":
			w.WriteHeader(http.StatusUnauthorized)
		case r.Method == http.MethodPost:
			w.Header().Set("Location", "http://ENGINE.example:80/status")
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	t.Cleanup(server.Close)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server.Listener.Addr().String())
	}}}
	t.Cleanup(client.CloseIdleConnections)
	d, err := engine.Remote{URL: "http://engine.example/run", Client: client, Poll: time.Millisecond, Header: http.Header{"Authorization": {"Bearer x"}}}.
		Define(engine.Definition{Name: "spn"})
	check(t, err)
	w := newWorld(t, storagetest.DSN(t), d)
	if o := w.Execute(t.Context(), "spn", message("m", `{}`)); o.Err != nil || o.Pending {
		t.Fatalf("%+v", o)
	}
}
