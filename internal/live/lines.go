package live

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/foreign"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/internal/story"
)

// Lines writes events and other text as JSON: one object a line.
type Lines struct {
	mu sync.Mutex
	w  io.Writer
}

func NewLines(w io.Writer) *Lines { return &Lines{w: w} }

func (l *Lines) Emit(e step.Event) {
	out := story.Line{Time: time.Now(), Msg: "step", Step: e.Path, Status: e.Status.String(), Title: e.Title, Text: e.Text}
	if _, node, _ := planning.NodeOfStep(e.Path); node != "" {
		out.Node = node
	}
	if e.Status == step.Started {
		out.Risk = e.Risk.String()
	}
	if e.Err != nil {
		out.Error, out.Hints = e.Err.Error(), fault.Hints(e.Err)
	}
	l.write(out)
}

// Write writes other text: warnings, errors, hints.
func (l *Lines) Write(p []byte) (int, error) {
	for text := range strings.Lines(string(p)) {
		if text = strings.TrimRight(text, "\r\n"); text != "" {
			l.write(story.Line{Time: time.Now(), Msg: "said", Text: text})
		}
	}
	return len(p), nil
}

func (l *Lines) write(out story.Line) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(foreign.JSON(text.Bytes())) // a closed output must not stop the run
}

// Follower reads the log of a run that another process writes. An overlong log is renamed
// to Older, and a new one begins.
type Follower struct {
	Path, Older string
	Written     time.Time // time of the last write; zero: none

	file    os.FileInfo // the file being read; nil: none yet
	offset  int64
	partial []byte // an unfinished line
}

// Read adds the new lines of the log to the board. A missing log counts as empty.
func (f *Follower) Read(b *Board) error {
	file, err := os.Open(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() // read only
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if f.file == nil || !os.SameFile(f.file, info) || info.Size() < f.offset {
		if err := f.older(b, info); err != nil {
			return err
		}
		f.offset, f.partial = 0, nil
	}
	f.file, f.Written = info, info.ModTime()
	return f.take(b, file, info.Size())
}

// older reads the unread rest of the older log.
func (f *Follower) older(b *Board, now os.FileInfo) error {
	file, err := os.Open(f.Older)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() // read only
	info, err := file.Stat()
	if err != nil || os.SameFile(info, now) { // renamed since it was opened
		return err
	}
	if f.file == nil || !os.SameFile(f.file, info) {
		f.offset, f.partial = 0, nil
	}
	return f.take(b, file, info.Size())
}

// take reads a file from f.offset up to size.
func (f *Follower) take(b *Board, file io.ReaderAt, size int64) error {
	fresh, err := io.ReadAll(io.NewSectionReader(file, f.offset, size-f.offset))
	f.offset += int64(len(fresh))
	text := append(f.partial, fresh...)
	for {
		one, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			f.partial = bytes.Clone(text)
			return err
		}
		b.logged(one)
		text = rest
	}
}

// logged adds one line of a log.
func (b *Board) logged(text []byte) {
	l, ok := story.Parse(text)
	if ok && l.Msg == "command" && l.Status == step.Started.String() {
		b.again(l.Time)
	} else if e, ok := l.Event(); ok {
		b.See(l.Time, e)
	}
}

// The colours of words.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	bold   = "1"
	dim    = "2"
)

// Look is the size of a frame, and whether it has colours.
type Look struct {
	Width, Height int
	Colour        bool
}

func (l Look) paint(colour, s string) string {
	if !l.Colour || s == "" {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

// fit truncates a line to the width in cells.
func (l Look) fit(line string) string {
	return strings.TrimRight(ansi.Truncate(line, max(1, l.Width), "…"), " ")
}

// apart puts two texts at the ends of a line; without room it drops the right one.
func (l Look) apart(left, right string) string {
	room := l.Width - ansi.StringWidth(left) - ansi.StringWidth(right)
	if room < 2 {
		return left
	}
	return left + strings.Repeat(" ", min(room, readable)) + right
}

// readable bounds the gap between the two: on a wide screen the right text would look
// unrelated.
const readable = 60

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-ansi.StringWidth(s)))
}

// took is a duration to the second.
func took(d time.Duration) string { return max(0, d).Round(time.Second).String() }

// about is an estimated duration.
func about(d time.Duration) string {
	switch {
	case d < 90*time.Second:
		return fmt.Sprintf("about %ds", int(max(0, d).Round(5*time.Second).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("about %dm", int(d.Round(time.Minute).Minutes()))
	}
	d = d.Round(time.Minute)
	return fmt.Sprintf("about %dh%dm", int(d.Hours()), int(d.Minutes())%60)
}

// barCells is the width of a transfer's bar.
const barCells = 20

func bar(done, total int64) string {
	full := int(barCells * max(0, min(done, total)) / max(1, total))
	return "[" + strings.Repeat("█", full) + strings.Repeat("░", barCells-full) + "]"
}

// names lists at most few names and counts the rest.
func names(of []string, few int) string {
	last := ""
	switch {
	case len(of) < 2:
		return strings.Join(of, "")
	case len(of) <= few+1:
		of, last = of[:len(of)-1], of[len(of)-1]
	default:
		of, last = of[:few], fmt.Sprintf("%d more", len(of)-few)
	}
	return strings.Join(of, ", ") + " and " + last
}
