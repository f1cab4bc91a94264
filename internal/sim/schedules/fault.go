package schedules

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/record"
)

// Fault is one trouble: what it is, on which node or host, from which moment on
// and for how long.
type Fault struct {
	Name  string
	Where int           // node, from 0, of whose VM or host it is; -1: of none
	Call  int           // at the n-th changing call of recast's, from 1; 0: After
	After time.Duration // so long after the first roll has begun
	For   time.Duration // 0: it is over at once, or is taken back in the end
}

// String is "kill@57", "host:2@57+2m0s", "mute:0@1m30s+40s".
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.Name)
	if f.Where >= 0 {
		fmt.Fprintf(&b, ":%d", f.Where)
	}
	if f.Call > 0 {
		fmt.Fprintf(&b, "@%d", f.Call)
	} else {
		fmt.Fprintf(&b, "@%s", f.After)
	}
	if f.For > 0 {
		fmt.Fprintf(&b, "+%s", f.For)
	}
	return b.String()
}

// longest is how late a fault may begin, and how long it may last.
const longest = 24 * time.Hour

// ParseFault reads the text of a fault.
func ParseFault(s string) (f Fault, err error) {
	what, when, found := strings.Cut(s, "@")
	if !found {
		return Fault{}, fmt.Errorf("%s: no @", s)
	}
	name, where, onNode := strings.Cut(what, ":")
	f.Name, f.Where = name, -1
	k, found := kindOf(name)
	if !found {
		return Fault{}, fmt.Errorf("%s: no such fault", s)
	}
	if onNode {
		f.Where, err = strconv.Atoi(where)
	}
	if err != nil || f.Where < -1 || onNode != k.onNode || onNode && f.Where < 0 {
		return Fault{}, fmt.Errorf("%s: on which node?", s)
	}
	when, long, lasts := strings.Cut(when, "+")
	if f.Call, err = strconv.Atoi(when); err != nil {
		f.Call = 0
		f.After, err = time.ParseDuration(when)
	} else if f.Call < 1 {
		err = errors.New("calls are counted from 1")
	}
	if lasts && err == nil {
		f.For, err = time.ParseDuration(long)
	}
	if err != nil {
		return Fault{}, fmt.Errorf("%s: %w", s, err)
	}
	if f.After < 0 || f.After > longest || f.For < 0 || f.For > longest || lasts != (f.For > 0) || lasts != k.lasts && !k.mayLast {
		return Fault{}, fmt.Errorf("%s: when, and how long?", s)
	}
	return f, nil
}

// kind is what there is of faults.
type kind struct {
	name   string
	weight int  // how often it is drawn
	onNode bool // it is about a node, or the host that it is on
	lasts  bool // it has an end of its own
	atCall bool // it is about a call: never at a time
	// mayLast says that it may have an end of its own, and is drawn with and without.
	mayLast bool
	// foreign says that a person does it, who takes it back when asked to.
	foreign bool
	// etcd says that it can take a member of etcd away.
	etcd bool
	// litters says that it can leave a volume behind that nobody names.
	litters bool
	// before runs before the server acts and drops the request where it gives an
	// error; after, when it has acted, before the answer leaves. act runs beside the
	// call. Each is nil where there is none.
	before func(p *play, s *struck) error
	after  func(p *play, s *struck)
	act    func(p *play, s *struck) (end func(), err error)
	// holds has a request to Proxmox carried out late, and says what its sender is
	// told meanwhile; sent, if there is one, befalls that sender. See late.go.
	holds *record.Answer
	sent  func(p *play)
}

func kindOf(name string) (kind, bool) {
	all := kinds()
	i := slices.IndexFunc(all, func(k kind) bool { return k.name == name })
	if i < 0 {
		return kind{}, false
	}
	return all[i], true
}
