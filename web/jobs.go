package web

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"

	"github.com/redrive-mq/redrive/storage"
)

const (
	defaultQueuedJobs = 25
	maxQueuedJobs     = 100
)

type queuedMessageModel struct {
	MessageID, Payload string
	Headers            map[string]string
	ContentType        string
}

type queuedJobModel struct {
	ID                           string
	Priority, IncrementalTimeout uint32 // the timeout in seconds
	Message                      queuedMessageModel
}

func (s *Server) queuedJobs(w http.ResponseWriter, r *http.Request) error {
	ref, err := s.authorizedConsumer(r, http.StatusUnauthorized)
	if err != nil {
		return err
	}
	if ref.consumer.Type != storage.TypePull {
		return errNotPull()
	}
	limit, err := queuedJobsLimit(r)
	if err != nil {
		return err
	}
	jobs, err := s.o.Store.QueuedJobs(r.Context(), ref.consumer.Key, limit)
	if err != nil {
		return err
	}
	out := struct{ Result []queuedJobModel }{make([]queuedJobModel, len(jobs))}
	for i, j := range jobs {
		out.Result[i] = queuedJobModel{
			ID: j.ID.String(), Priority: j.Priority, IncrementalTimeout: j.IncrementalTimeout,
			Message: queuedMessageModel{j.MessageID, string(j.Body), headersModel(j.Headers), j.ContentType},
		}
	}
	return writeJSON(w, out)
}

func errNotPull() error {
	return fail(http.StatusPreconditionFailed, "the consumer is not a pull consumer")
}

func queuedJobsLimit(r *http.Request) (int, error) {
	query, err := parseQuery(r)
	if err != nil {
		return 0, err
	}
	value := query.Get("limit")
	if value == "" {
		return defaultQueuedJobs, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return 0, badRequest("limit is not a number from 0 up")
	}
	return min(n, maxQueuedJobs), nil
}

// jobOf finds the job that the path names, for a consumer that proved who it is.
func (s *Server) jobOf(r *http.Request) (consumerRef, *storage.Job, error) {
	ref, err := s.authorizedConsumer(r, http.StatusUnauthorized)
	if err != nil {
		return ref, nil, err
	}
	id, err := jobID(r)
	if err != nil {
		return ref, nil, err
	}
	j, err := s.o.Store.Job(r.Context(), id)
	if errors.Is(err, storage.ErrNotFound) {
		return ref, nil, notFound("there is no such job")
	}
	if err != nil {
		return ref, nil, err
	}
	if j.ConsumerKey != ref.consumer.Key {
		return ref, nil, unauthorized("the job is another consumer's")
	}
	return ref, j, nil
}

// jobID reads the job's id of the path. What is no xid names no job.
func jobID(r *http.Request) (storage.ID, error) {
	text, err := pathID(r, "jobId")
	if err != nil {
		return storage.ID{}, notFound("there is no such job")
	}
	id, err := storage.ParseID(text)
	if err != nil || id.String() != text {
		return storage.ID{}, notFound("there is no such job")
	}
	return id, nil
}

type linkedJobModel struct {
	jobModel
	MessageURL, ChannelURL, ConsumerURL, ProducerURL string
	JobRequeueURL                                    string // empty unless the job is dead
}

func (s *Server) getJob(w http.ResponseWriter, r *http.Request) error {
	ref, j, err := s.jobOf(r)
	if err != nil {
		return err
	}
	out := linkedJobModel{
		jobModel:    newJobModel(ref.consumer, j),
		MessageURL:  messageURL(ref.channel.ID, j.MessageID),
		ChannelURL:  channelURL(ref.channel.ID),
		ConsumerURL: consumerURL(ref.channel.ID, ref.consumer.ID),
	}
	if p, ok := ref.catalog.ProducerByKey(j.ProducerKey); ok {
		out.ProducerURL = producerURL(p.ID)
	}
	if j.Status == storage.StatusDead {
		out.JobRequeueURL = requeueURL(ref.channel.ID, ref.consumer.ID, j.ID.String())
	}
	return writeJSON(w, out)
}

// jobUpdate is what a pull consumer reports.
type jobUpdate struct {
	next               storage.Status
	incrementalTimeout uint32 // seconds
}

// parseJobUpdate reads the body of a report. Members that it does not know are none of its business.
func parseJobUpdate(body []byte) (u jobUpdate, err error) {
	var in struct {
		NextState          string
		IncrementalTimeout int64
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return u, badRequest("the body is not a JSON object with NextState and, if wanted, IncrementalTimeout in whole seconds")
	}
	var ok bool
	if u.next, ok = storage.ParseStatus(in.NextState); !ok || u.next == storage.StatusShelved {
		return u, badRequest("NextState is none of QUEUED, INFLIGHT, DELIVERED and DEAD")
	}
	if in.IncrementalTimeout < 0 || in.IncrementalTimeout > math.MaxUint32 {
		return u, badRequest("IncrementalTimeout is not a number of seconds from 0 to 4294967295")
	}
	u.incrementalTimeout = uint32(in.IncrementalTimeout)
	return u, nil
}

func (s *Server) postJob(w http.ResponseWriter, r *http.Request) error {
	ref, j, err := s.jobOf(r)
	if err != nil {
		return err
	}
	if ref.consumer.Type != storage.TypePull {
		return errNotPull()
	}
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	u, err := parseJobUpdate(body)
	if err != nil {
		return err
	}
	if u.incrementalTimeout > 0 && (u.next != storage.StatusInflight || j.Status == storage.StatusInflight) {
		return badRequest("IncrementalTimeout is for a job that becomes INFLIGHT")
	}
	if err := s.o.Store.SetPullState(r.Context(), storage.PullState{
		Job: j.ID, Consumer: ref.consumer, Next: u.next, IncrementalTimeout: u.incrementalTimeout, Lease: s.o.PullLease,
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}
