package story

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

const (
	// LogName is the log of a run in the directory of its journal. OlderLogName is the part
	// before the last rotation.
	LogName      = "log.jsonl"
	OlderLogName = "log.1.jsonl"
)

// line is one line of a log, as internal/telemetry writes it.
type line struct {
	Time    time.Time `json:"time"`
	Msg     string    `json:"msg"`
	Status  string    `json:"status"`
	Command string    `json:"command"`
	Version string    `json:"version"`
	Exit    int       `json:"exitCode"`
	Error   string    `json:"error"`
	Hints   []string  `json:"hints"`
	Run     string    `json:"run"`
	Step    string    `json:"step"`
	Title   string    `json:"title"`
	Text    string    `json:"text"`
	Server  string    `json:"server"`

	Kubernetes bool     `json:"kubernetes"`
	Nodes      int      `json:"nodes"`
	NotReady   []string `json:"notReady"`
	Etcd       bool     `json:"etcd"`
	Members    int      `json:"members"`
	Unwell     []string `json:"unwell"`
}

// longestLine is more than any log line: an error about a whole cluster is a few
// kilobytes.
const longestLine = 4 << 20

// Read reads the log of a run from its directories, one for each machine that worked on it, in their order. It skips
// a line that a killed process left unfinished. Without a log the story is empty.
func Read(dirs ...fs.FS) (Story, error) {
	b := &builder{open: map[string]*Stage{}, turns: map[string]*Turn{}, requests: map[string]*Requests{}}
	b.Begins = true
	for _, dir := range dirs {
		for _, name := range []string{OlderLogName, LogName} {
			if err := b.readFile(dir, name); err != nil {
				return b.Story, fmt.Errorf("read the log of the run: %w", err)
			}
		}
	}
	return b.end(), nil
}

// ReadDirs is Read for directories by their names, as a past run has them.
func ReadDirs(names []string) (Story, error) {
	var dirs []fs.FS
	for _, name := range names {
		dirs = append(dirs, os.DirFS(name))
	}
	return Read(dirs...)
}

func (b *builder) readFile(dir fs.FS, name string) error {
	f, err := dir.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = b.read(f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (b *builder) read(r io.Reader) error {
	lines := bufio.NewReaderSize(r, 1<<16)
	for {
		text, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			return nil // the process was killed while it wrote this line
		}
		if err != nil {
			return err
		}
		l, ok := parse(text)
		if behind := bytes.LastIndex(text, []byte(firstKey)); !ok && behind > 0 {
			l, ok = parse(text[behind:]) // a line after one that a killed process left unfinished
		}
		if !ok {
			b.Broken++
			continue
		}
		b.add(l)
	}
}

// firstKey begins every line.
const firstKey = `{"time":"`

func parse(text []byte) (l line, ok bool) {
	err := json.Unmarshal(text, &l)
	return l, err == nil && !l.Time.IsZero()
}

// readLine returns one line, and a part of one that is too long, which is not valid JSON.
func readLine(r *bufio.Reader) (text []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(text)+len(part) <= longestLine {
			text = append(text, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, err
		}
	}
}
