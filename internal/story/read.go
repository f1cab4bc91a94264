package story

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"
)

const (
	// LogName is the log of a run in the directory of its journal, and OlderLogName
	// what it was before it grew too long: the newest lines are there in any case.
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

// longestLine is more than a log has: an error of a whole cluster is some kilobytes.
const longestLine = 4 << 20

// Read reads the log of a run from its directory. What a killed process has not
// finished writing is left out; without any log the story is empty.
func Read(dir fs.FS) (Story, error) {
	t := &teller{open: map[string]*Stage{}, turns: map[string]*Turn{}, requests: map[string]*Requests{}}
	t.Begins = true
	for _, name := range []string{OlderLogName, LogName} {
		f, err := dir.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return t.Story, fmt.Errorf("read the log of the run: %w", err)
		}
		err = t.read(f)
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return t.Story, fmt.Errorf("read the log of the run: %s: %w", name, err)
		}
	}
	return t.end(), nil
}

func (t *teller) read(r io.Reader) error {
	lines := bufio.NewReaderSize(r, 1<<16)
	for {
		text, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			return nil // what stands behind the last line feed was cut off
		}
		if err != nil {
			return err
		}
		l, ok := parse(text)
		if behind := bytes.LastIndex(text, []byte(firstKey)); !ok && behind > 0 {
			l, ok = parse(text[behind:]) // of who went on where a killed process had been writing
		}
		if !ok {
			t.Broken++
			continue
		}
		t.hear(l)
	}
}

// firstKey begins every line.
const firstKey = `{"time":"`

func parse(text []byte) (l line, ok bool) {
	err := json.Unmarshal(text, &l)
	return l, err == nil && !l.Time.IsZero()
}

// readLine returns one line; of one that is too long nothing, which is no JSON.
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
