package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

const (
	pullEvery = time.Second
	pullLimit = 50
	maxOrder  = 1 << 20
)

// listen opens the port of the push consumers and of the two buttons, heal and break.
func (d *Demo) listen(ctx context.Context) error {
	host, _, err := net.SplitHostPort(d.o.Listen)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", d.o.Listen)
	if err != nil { // taken: any other
		if listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(host, "0")); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	d.url = "http://" + listener.Addr().String()
	d.server = &http.Server{Handler: d.consumers(), ReadHeaderTimeout: requestTimeout, IdleTimeout: time.Minute}
	d.serving.Go(func() {
		if err := d.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			d.o.Log.Error("demo: the consumers cannot listen any more", "error", err)
		}
	})
	return nil
}

func (d *Demo) consumers() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /"+healthy.id, func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, http.StatusOK, "charged")
	})
	mux.HandleFunc("POST /"+failing.id, func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, http.StatusInternalServerError, "ORA-00942: table or view does not exist")
	})
	mux.HandleFunc("POST /"+ailing.id, func(w http.ResponseWriter, r *http.Request) {
		if d.healed.Load() {
			answer(w, r, http.StatusOK, "sent")
			return
		}
		answer(w, r, http.StatusServiceUnavailable, "the mail relay refuses connections")
	})
	mux.HandleFunc("POST /heal", func(w http.ResponseWriter, r *http.Request) {
		d.healed.Store(true)
		answer(w, r, http.StatusOK, ailing.id+" is healed. Its dead letters wait until they are requeued:\n"+d.requeueAllLine(ailing))
	})
	mux.HandleFunc("POST /break", func(w http.ResponseWriter, r *http.Request) {
		d.healed.Store(false)
		answer(w, r, http.StatusOK, ailing.id+" fails again")
	})
	return mux
}

func answer(w http.ResponseWriter, r *http.Request, status int, text string) {
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxOrder)) // so that the connection can be used again
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprintln(w, text)
}

// pull works through the queue of the pull consumer until ctx ends.
func (d *Demo) pull(ctx context.Context) {
	for pause(ctx, pullEvery) {
		if err := d.pullOnce(ctx); err != nil && ctx.Err() == nil {
			d.o.Log.Warn("demo: the pull consumer could not work", "error", err)
		}
	}
}

func (d *Demo) pullOnce(ctx context.Context) error {
	var queue struct {
		Result []struct {
			ID      string
			Message struct{ Payload string }
		}
	}
	if err := d.api.get(ctx, pulling.path()+"/queued-jobs?limit="+strconv.Itoa(pullLimit), pulling.authorization(), &queue); err != nil {
		return err
	}
	for _, job := range queue.Result {
		// INFLIGHT keeps it ours while we work on it. Another puller may have been first: then it is not ours.
		if err := d.report(ctx, job.ID, "INFLIGHT"); err != nil {
			return err
		}
		outcome := "DELIVERED"
		if !deliverable(job.Message.Payload) {
			outcome = "DEAD"
		}
		if err := d.report(ctx, job.ID, outcome); err != nil {
			return err
		}
	}
	return nil
}

// deliverable tells whether the warehouse has everything that an order asks for.
func deliverable(payload string) bool {
	var o order
	if json.Unmarshal([]byte(payload), &o) != nil {
		return false
	}
	for _, l := range o.Lines {
		if l.SKU == discontinued {
			return false
		}
	}
	return true
}

func (d *Demo) report(ctx context.Context, job, state string) error {
	body, err := json.Marshal(map[string]string{"NextState": state})
	if err != nil {
		return err
	}
	headers := pulling.authorization()
	headers["Content-Type"] = "application/json"
	_, _, err = d.api.do(ctx, call{method: http.MethodPost, path: pulling.path() + "/job/" + job, headers: headers, body: body})
	return err
}
