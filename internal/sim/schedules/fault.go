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

// Fault is one fault: its kind, its node or host, when it begins and how long it lasts.
type Fault struct {
	Name  string
	Where int           // index of the node whose VM or host it affects; -1: none
	Call  int           // at recast's n-th changing call, from 1; 0: After
	After time.Duration // time since the first roll began
	For   time.Duration // 0: momentary, or reverted at the end
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

// longest limits when a fault begins, and how long it lasts.
const longest = 24 * time.Hour

// ParseFault parses the text of a fault.
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

// kind is one kind of fault.
type kind struct {
	name   string
	weight int  // relative frequency
	onNode bool // it affects a node, or its host
	lasts  bool // it has a duration
	atCall bool // it can only begin at a call
	// mayLast says that a duration is optional.
	mayLast bool
	// foreign says that a person causes it and reverts it on request.
	foreign bool
	// etcd says that it can make a member of etcd unavailable.
	etcd bool
	// litters says that it can leave an unreferenced volume behind.
	litters bool
	// before runs before the server acts and drops the request if it returns an error; after
	// runs after the server has acted, before the answer is sent. act runs independently of
	// the call. Each may be nil.
	before func(p *play, s *struck) error
	after  func(p *play, s *struck)
	act    func(p *play, s *struck) (end func(), err error)
	// holds makes Proxmox process a request late, and is the answer that its sender gets
	// meanwhile; sent, if set, then affects the sender. See late.go.
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
