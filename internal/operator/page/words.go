package page

import (
	"cmp"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// state is what an object says of itself.
type state struct {
	Word, Mood string // Mood: "good", "open", "bad"
	Why        string
}

const (
	good = "good"
	open = "open"
	bad  = "bad"
)

// state reads the conditions of an object.
func (l look) state(of []metav1.Condition) state {
	ready := meta.FindStatusCondition(of, v1alpha1.ConditionReady)
	switch {
	case ready == nil:
		return state{Word: "not looked at yet", Mood: open}
	case meta.IsStatusConditionTrue(of, v1alpha1.ConditionStalled):
		return state{l.inWords(ready.Reason), bad, l.text(ready.Message)}
	case ready.Status == metav1.ConditionTrue && ready.Reason != v1alpha1.ReasonSuspended:
		return state{l.inWords(ready.Reason), good, l.text(ready.Message)}
	}
	return state{l.inWords(ready.Reason), open, l.text(ready.Message)}
}

// inWords makes "awaiting approval" of AwaitingApproval.
func (l look) inWords(reason string) string {
	var out strings.Builder
	for i, r := range l.text(reason) {
		if unicode.IsUpper(r) && i > 0 {
			out.WriteByte(' ')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

// text is foreign text without secrets.
func (l look) text(s string) string { return l.frame.Hide(s) }

func (l look) texts(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = l.text(s)
	}
	return out
}

// Short is the beginning of what an object says, for tables; "" if all is well.
func (s state) Short() string {
	const most = 110 // characters
	line, _, _ := strings.Cut(s.Why, "\n")
	switch text := []rune(line); {
	case s.Mood == good:
		return ""
	case len(text) > most:
		line = string(text[:most])
		return line[:cmp.Or(max(strings.LastIndex(line, " "), 0), len(line))] + " …"
	}
	return line
}

// ago is how long ago something was, or how long it takes until then, as kubectl says it.
func (l look) ago(t time.Time) string {
	if d := l.at.Sub(t); d >= 0 {
		return duration.HumanDuration(d) + " ago"
	}
	return "in " + duration.HumanDuration(t.Sub(l.at))
}

// when is a time, "" if there is none.
func (l look) when(t *metav1.Time) string {
	if t.IsZero() {
		return ""
	}
	return l.clock(t.Time) + ", " + l.ago(t.Time)
}

// clock is a time, with the day if it is not today.
func (l look) clock(t time.Time) string {
	if t.UTC().Format(time.DateOnly) != l.at.UTC().Format(time.DateOnly) {
		return t.UTC().Format("2006-01-02 15:04")
	}
	return t.UTC().Format("15:04")
}

// took is how long something lasted, or has lasted so far.
func (l look) took(from, to *metav1.Time) string {
	switch {
	case from.IsZero():
		return ""
	case to.IsZero():
		return duration.HumanDuration(l.at.Sub(from.Time)) + " so far"
	}
	return duration.HumanDuration(to.Sub(from.Time))
}

// fact is a line about an object.
type fact struct{ Name, Value string }

// facts are those that have a value.
func facts(pairs ...string) (out []fact) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out = append(out, fact{pairs[i], pairs[i+1]})
		}
	}
	return out
}

// given is a text if something is so.
func given(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

// command is what a person may type. It has no foreign text, since people copy it into a shell: only names
// of objects, which Kubernetes has checked.
type command struct{ What, Line string }

// The times after which a page is fetched again, in seconds: while a roll of it is active, otherwise.
const (
	running = 5
	seldom  = 15
)
