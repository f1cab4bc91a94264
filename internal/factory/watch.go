package factory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// stallAfter is how long a body may send nothing.
const stallAfter = time.Minute

var errStalled = fmt.Errorf("nothing came for %s", stallAfter)

// watched is a body that ends with errStalled when no more data comes.
type watched struct {
	body   io.ReadCloser
	ctx    func() error // the cause, if the request was cancelled
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// watch takes over cancel, which ends the body's request.
func watch(ctx context.Context, cancel context.CancelCauseFunc, body io.ReadCloser) io.ReadCloser {
	timer := time.AfterFunc(stallAfter, func() { cancel(errStalled) })
	timer.Stop() // only the time during a Read counts
	return &watched{body: body, ctx: func() error { return context.Cause(ctx) }, cancel: cancel, timer: timer}
}

func (w *watched) Read(p []byte) (int, error) {
	w.timer.Reset(stallAfter)
	n, err := w.body.Read(p)
	w.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		if cause := w.ctx(); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (w *watched) Close() error {
	w.timer.Stop()
	err := w.body.Close()
	w.cancel(nil)
	return err
}
