package telemetry

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/recast-sh/recast/internal/story"
)

const (
	maxLog     = 8 << 20
	maxPending = 1 << 20
)

// openLog opens a log for appending; only its owner may read it.
func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// sink is where log lines go: the --log-file, and the log of the run.
type sink struct {
	warn func(string)

	mu      sync.Mutex
	file    *os.File // nil: not wanted, or writing has failed
	pending []byte   // lines from before the first run
	begun   bool     // a run has begun
	run     *os.File // nil: no run has begun, or writing has failed
	dir     string   // of the run
	size    int64    // of the run's log
}

// Write writes one line, as slog's handlers produce it. It never fails: when a log can't
// be written, it warns once and stops writing to it.
func (s *sink) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file != nil {
		if _, err := s.file.Write(line); err != nil {
			s.giveUp(&s.file, err)
		}
	}
	if !s.begun {
		s.keep(line)
	} else if s.run != nil {
		s.append(line)
	}
	return len(line), nil
}

// keep buffers a line until a run begins; if the buffer is full, it drops the oldest
// lines.
func (s *sink) keep(line []byte) {
	if len(s.pending)+len(line) > maxPending {
		_, newer, _ := bytes.Cut(s.pending[len(s.pending)/2:], []byte("\n"))
		s.pending = bytes.Clone(newer)
	}
	s.pending = append(s.pending, line...)
}

func (s *sink) append(line []byte) {
	if s.size+int64(len(line)) > maxLog {
		if err := s.rotate(); err != nil {
			s.giveUp(&s.run, err)
			return
		}
	}
	n, err := s.run.Write(line)
	s.size += int64(n)
	if err != nil {
		s.giveUp(&s.run, err)
	}
}

// rotate renames the log of the run and begins a new one.
func (s *sink) rotate() error {
	path := filepath.Join(s.dir, story.LogName)
	if err := errors.Join(s.run.Close(), os.Rename(path, filepath.Join(s.dir, story.OlderLogName))); err != nil {
		return err
	}
	return s.open()
}

func (s *sink) open() error {
	f, err := openLog(filepath.Join(s.dir, story.LogName))
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.run, s.size = f, info.Size()
	return nil
}

// begin switches to the log of a run.
func (s *sink) begin(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.begun && s.dir == dir {
		return
	}
	if s.run != nil {
		_ = s.run.Close() // lines are written unbuffered
		s.run = nil
	}
	s.dir, s.begun = dir, true
	if err := s.open(); err != nil {
		s.warn("the run has no log: " + err.Error())
		return
	}
	if pending := s.pending; len(pending) > 0 {
		s.pending = nil
		s.append(pending)
	}
}

// giveUp warns and closes the log.
func (s *sink) giveUp(f **os.File, err error) {
	s.warn("logging stopped: " + err.Error())
	_ = (*f).Close() // writing has failed already
	*f = nil
}

func (s *sink) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range []**os.File{&s.file, &s.run} {
		if *f != nil {
			_ = (*f).Close() // lines are written unbuffered
			*f = nil
		}
	}
}
