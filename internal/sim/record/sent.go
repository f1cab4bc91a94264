package record

import "net/http"

// counted reports the size of an answer's body to the recorder.
type counted struct {
	http.ResponseWriter
	recorder *Recorder
	call     Call
}

// Counted is w with the bytes of the body counted for c's answer.
func (r *Recorder) Counted(w http.ResponseWriter, c Call) http.ResponseWriter {
	return counted{w, r, c}
}

func (w counted) Write(b []byte) (int, error) {
	w.recorder.sent(w.call, len(b))
	return w.ResponseWriter.Write(b)
}

// Unwrap implements the interface of http.ResponseController.
func (w counted) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (r *Recorder) sent(c Call, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if kept := r.kept(c); kept != nil {
		kept.Bytes += int64(bytes)
	}
}
