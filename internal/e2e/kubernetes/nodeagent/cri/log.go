package cri

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// log is the output of a container: for the kubelet in the format that it reads, which it
// rotates and deletes, and for tests as the container wrote it.
type log struct {
	path string // "": none for the kubelet

	mu     sync.Mutex
	file   *os.File // at path, which may not be open
	output *os.File // nil after a boot
}

func openLog(path, output string) (*log, error) {
	l := &log{path: path}
	var err error
	if l.output, err = os.OpenFile(output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	return l, l.reopen()
}

func (l *log) reopen() error {
	if l.path == "" {
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		err = l.file.Close()
	}
	l.file = f
	return err
}

// Close closes both files. The container must have ended.
func (l *log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	for _, f := range []*os.File{l.output, l.file} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// copy copies a stream until its end, and closes it.
func (l *log) copy(stream string, from *os.File) {
	defer from.Close()
	r := bufio.NewReaderSize(from, 16<<10)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			l.write(stream, line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// write writes a line or a part of one. A container does not wait for a full disk.
func (l *log) write(stream string, line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.output.Write(line) // see above
	if l.file == nil {
		return
	}
	tag, end := "F", ""
	if line[len(line)-1] != '\n' {
		tag, end = "P", "\n"
	}
	var out io.Writer = l.file
	_, _ = fmt.Fprintf(out, "%s %s %s %s%s", time.Now().Format(time.RFC3339Nano), stream, tag, line, end) // see above
}
