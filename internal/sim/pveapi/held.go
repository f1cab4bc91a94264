package pveapi

import (
	"context"
	"net/http"

	"github.com/recast-sh/recast/internal/sim/record"
)

// hold sends the Held's answer to a request and has it processed when it is due. If it is
// due before the sender stops waiting, the sender gets the real answer.
func (s *Server) hold(rw http.ResponseWriter, r *http.Request, q request, seen record.Call, held *record.Held) {
	waiting, stop := context.WithCancel(r.Context())
	defer stop()
	var out outcome // read only after inTime is closed
	inTime := make(chan struct{})
	s.running.Go(func() {
		defer stop()
		defer held.End()
		// The request outlives its context, which ends with the connection's handler.
		out = s.late(r.Clone(context.WithoutCancel(r.Context())), q, seen, held)
		close(inTime)
	})
	a := held.Answer()
	s.world.DelayUnless(a.After, waiting.Done())
	select {
	case <-inTime:
		s.answer(rw, q, out)
		return
	default:
	}
	if a.Status == 0 || r.Context().Err() != nil || s.world.HostDown(s.host) {
		panic(http.ErrAbortHandler)
	}
	writeRaw(rw, a.Status, a.Reason, a.ContentType, []byte(a.Body))
}

// late waits until a request is due and processes it, unless the host is down. As any
// worker does, it authenticates the request only then.
func (s *Server) late(r *http.Request, q request, seen record.Call, held *record.Held) outcome {
	select {
	case <-held.Due():
	case <-s.ended:
		q.drop()
		return outcome{err: errNoAnswer}
	}
	if s.world.HostDown(s.host) {
		q.drop()
		return outcome{err: errNoAnswer}
	}
	seen, err := s.recorder.Resume(seen)
	if err != nil {
		q.drop()
		return outcome{err: errNoAnswer}
	}
	user, err := s.letIn(r, q, true)
	if err != nil {
		q.drop()
	}
	return s.carryOut(r, user, q, seen, err)
}
