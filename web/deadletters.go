package web

import (
	"net/http"

	"github.com/redrive-mq/redrive/storage"
)

type deadJobModel struct {
	jobModel
	MessageURL, JobRequeueURL string
}

type deadListModel struct {
	DeadJobs []deadJobModel
	Pages    map[string]string
}

func (s *Server) listDead(w http.ResponseWriter, r *http.Request) error {
	q, err := parsePage(r, placeDeath)
	if err != nil {
		return err
	}
	ref, err := s.consumerOf(r)
	if err != nil {
		return err
	}
	jobs, _, err := s.o.Store.DeadJobs(r.Context(), ref.consumer.Key, q.cursor(), pageSize)
	if err != nil {
		return err
	}
	out := deadListModel{
		DeadJobs: make([]deadJobModel, len(jobs)),
		Pages: pageLinks(r, jobs, func(j storage.Job) place {
			return place{kind: placeDeath, at: j.StatusChangedAt, id: j.ID}
		}),
	}
	for i := range jobs {
		out.DeadJobs[i] = deadJobModel{
			newJobModel(ref.consumer, &jobs[i]),
			messageURL(ref.channel.ID, jobs[i].MessageID),
			requeueURL(ref.channel.ID, ref.consumer.ID, jobs[i].ID.String()),
		}
	}
	return writeJSON(w, out)
}

func (s *Server) requeueJob(w http.ResponseWriter, r *http.Request) error {
	ref, j, err := s.jobOf(r)
	if err != nil {
		return err
	}
	if err := s.o.Store.RequeueOne(r.Context(), ref.consumer.Key, j.ID, "consumer"); err != nil {
		return err
	}
	s.o.Kicker.Kick(ref.consumer.Key)
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// requeueAll brings back all dead jobs of a consumer. It goes on when its client has gone away: half of a requeue is
// harmless, but nobody who sent one wants it.
func (s *Server) requeueAll(w http.ResponseWriter, r *http.Request) error {
	if !isForm(r.Header.Get("Content-Type")) {
		return fail(http.StatusUnsupportedMediaType, "the body must be "+typeForm)
	}
	ref, err := s.consumerOf(r)
	if err != nil {
		return err
	}
	form, err := s.readForm(w, r)
	if err != nil {
		return err
	}
	if ref.consumer.Sealed {
		return errSealed()
	}
	if !ref.consumer.TokenMatches(form.Get("requeue")) {
		return badRequest("requeue must be the consumer's token")
	}
	ctx, cancel := s.detached(w, r)
	defer cancel()
	// Whatever ends it, some jobs may have come back by then.
	defer s.o.Kicker.Kick(ref.consumer.Key)
	s.o.Kicker.Kick(ref.consumer.Key)
	n, err := s.o.Store.RequeueAll(ctx, ref.consumer.Key, "consumer")
	if err != nil {
		return err
	}
	return writeJSONStatus(w, http.StatusAccepted, struct {
		Requeued int64 `json:"requeuedCount"`
	}{n})
}

func (s *Server) deleteJob(w http.ResponseWriter, r *http.Request) error {
	ref, err := s.authorizedConsumer(r, http.StatusNotFound)
	if err != nil {
		return err
	}
	id, err := jobID(r)
	if err != nil {
		return err
	}
	if err := s.o.Store.PurgeOne(r.Context(), ref.consumer.Key, id, s.o.MaxRetry, "consumer"); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// purgeAll deletes all dead jobs of a consumer, and goes on like requeueAll.
func (s *Server) purgeAll(w http.ResponseWriter, r *http.Request) error {
	ref, err := s.authorizedConsumer(r, http.StatusNotFound)
	if err != nil {
		return err
	}
	ctx, cancel := s.detached(w, r)
	defer cancel()
	n, err := s.o.Store.PurgeAll(ctx, ref.consumer.Key, s.o.MaxRetry, "consumer")
	if err != nil {
		return err
	}
	return writeJSON(w, struct {
		Deleted int64 `json:"deletedCount"`
	}{n})
}
