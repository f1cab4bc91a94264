package schedules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
	"github.com/recast-sh/recast/internal/sim/simtest"
	"github.com/recast-sh/recast/internal/sim/world"
	"github.com/recast-sh/recast/pipeline"
)

type Result struct {
	Case      string         `json:"case"`
	NodeRolls int            `json:"nodeRolls"` // nodes rolled to another build
	Runs      int            `json:"runs"`      // processes of recast
	Calls     int            `json:"calls"`     // received by the servers
	Struck    map[string]int `json:"struck"`    // faults that took effect
	Persons   map[string]int `json:"persons"`   // recast's messages when it needed a person
	Problems  []string       `json:"problems,omitempty"`
	Story     []string       `json:"story,omitempty"` // events, if there are problems
	Virtual   time.Duration  `json:"virtual"`
}

// play is a running case.
type play struct {
	c     Case
	lab   *simtest.Lab
	t     testing.TB
	ctx   context.Context
	begun time.Time
	first map[int]world.VM // the nodes' initial VMs

	previous []byte // recast.lock before the latest change

	beside sync.WaitGroup // independent work of faults
	others others

	screens screens

	mu       sync.Mutex
	res      Result
	list     []*struck
	calls    int // recast's changing calls
	apiAway  int
	cordoned map[string]bool // by people
	muted    map[int]bool
	current  *process
	away     bool // the next process runs on another machine
	members  map[string]string
	problems map[string]bool            // all problems so far
	records  map[string]*parking.Record // open records, by their VM's description; nil: the VM has none
	calm     bool                       // no fault begins any more, and those with a duration have ended
	over     bool
	changes  uint64 // of the datacentre, at the latest check
}

type struck struct {
	Fault
	kind
	begun bool
	call  record.Call
	late  *late  // a held request; nil: none
	end   func() // nil: it has ended, or needs no end
	since time.Time
	timer *time.Timer // begins it, and later ends it
}

type process struct {
	client *simtest.Client
	cancel context.CancelFunc
	dead   bool
}

// screens keeps the last line of each machine's screen.
type screens struct {
	mu    sync.Mutex
	lines map[string]string
}

// Write gets one line, prefixed with its source.
func (s *screens) Write(line []byte) (int, error) {
	who, text, _ := strings.Cut(string(line), ": ")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines[who] = text
	return len(line), nil
}

func (s *screens) last(who string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines[who]
}

// Play makes the lab of a case and plays it, inside a synctest bubble.
func Play(t testing.TB, c Case) Result {
	p := newPlay(t, c)
	p.playAll()
	return p.res
}

func newPlay(t testing.TB, c Case) *play {
	p := &play{
		c: c, t: t, ctx: t.Context(), cordoned: map[string]bool{}, muted: map[int]bool{}, problems: map[string]bool{}, first: map[int]world.VM{}, records: map[string]*parking.Record{},
		screens: screens{lines: map[string]string{}},
		others:  others{squats: map[int]bool{}, vms: map[int]map[string]string{}, sent: map[string]int{}, looked: map[string]int{}, changed: map[string]int{}},
		res:     Result{Case: c.String(), Struck: map[string]int{}, Persons: map[string]int{}},
	}
	o := c.options()
	o.Console = &p.screens
	p.lab = simtest.New(t, o)
	return p
}

func (p *play) playAll() {
	p.prepare()
	p.begun = time.Now()
	p.aim()
	p.lab.Recorder.Hooks(p.before, p.after)
	for _, change := range p.c.Changes {
		p.change(change)
		if !p.round() {
			break
		}
		if change != changeBack {
			p.res.NodeRolls += p.c.nodes()
		}
	}
	p.lab.Recorder.Hooks(nil, nil)
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.endAll(true)
	p.beside.Wait()
	p.look("everything")
	p.res.Virtual = time.Since(p.begun)
}

// walled is a firewall in which the order of the rules matters.
var walled = world.Firewall{
	Options: map[string]string{"enable": "1", "policy_in": "DROP"},
	Aliases: []world.FirewallAlias{{Name: "desk", CIDR: "192.0.2.7"}},
	IPSets:  []world.FirewallSet{{Name: "admins", Members: []world.FirewallMember{{CIDR: "192.0.2.0/28"}, {CIDR: "desk"}}}},
	Rules: []world.FirewallRule{
		{"type": "in", "action": "DROP", "source": "192.0.2.66", "enable": "1"},
		{"type": "in", "action": "ACCEPT", "source": "+admins", "enable": "1"},
	},
}

func (p *play) prepare() {
	for _, key := range p.c.roll() {
		p.lab.Replace("recast.yaml", "roll:\n", "roll:\n  "+key+"\n")
	}
	for i, n := range p.lab.Nodes {
		p.lab.Replace("recast.yaml", "{name: "+n.Name+",", fmt.Sprintf("{name: %s, strategy: %s,", n.Name, p.c.strategy(i)))
		vm, err := p.vmOf(i)
		if err != nil {
			p.t.Fatal(err)
		}
		p.first[i] = vm
		if p.c.Firewall {
			p.lab.World.SetFirewall(n.VMID, walled)
		}
	}
	if p.c.Boot != "" {
		p.lab.BootsDisks(p.c.Boot)
	}
	if p.c.Surge > 0 {
		p.lab.AddSurge(p.c.Surge)
	}
	p.members = p.memberIDs()
}

// change publishes a change for all nodes.
func (p *play) change(what string) {
	if what == changeBack {
		p.back()
		return
	}
	p.previous = p.lab.Read("recast.lock")
	if what == changePatch {
		p.lab.Patch("qemu-guest-agent")
		return
	}
	p.lab.Replace("recast.yaml", "version: "+p.c.talosOf(), "version: "+nextTalos)
	if _, err := p.lab.Client().Lock(p.ctx, pipeline.LockOptions{Update: true}); err != nil {
		p.t.Fatal(err)
	}
}

// tries is the number of retries before a person intervenes, and after that.
const tries = 2

// round rolls until recast is done, and checks the final state.
func (p *play) round() bool {
	var err error
	for n := 0; ; n++ {
		var died bool
		died, err = p.run()
		if died {
			continue
		}
		if err == nil {
			problems := p.ended()
			if len(problems) == 0 {
				return true
			}
			err = errors.New("recast says that it is done, but " + strings.Join(problems, "; "))
			p.tell("%v", err)
			if n > len(p.c.Faults)+2*tries {
				p.fail("%v", err)
				return false
			}
		}
		switch {
		case n == len(p.c.Faults)+tries: // the faults with a duration have ended
			p.endAll(false)
		case n == len(p.c.Faults)+2*tries:
			p.person(err)
			p.endAll(true)
		case n == len(p.c.Faults)+4*tries: // one remedy may have shown the next one
			p.fail("it does not converge: %s", said(err))
			return false
		}
		sleep(p.ctx, 2*time.Minute)
		p.remedy(err)
	}
}

// run runs one process of recast, from its start to its end or death.
func (p *play) run() (died bool, err error) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	p.mu.Lock()
	away := p.away
	p.away = false
	p.mu.Unlock()
	run := p.nextRun()
	c := p.lab.Client()
	c.Run, c.Elsewhere = run, away
	if away {
		if err := os.RemoveAll(filepath.Join(p.lab.Dir, ".recast")); err != nil {
			p.t.Fatal(err)
		}
	}
	life := &process{client: c, cancel: cancel}
	c.JournalSync = func(string) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if life.dead {
			return errStruck
		}
		return nil
	}
	p.mu.Lock()
	p.current = life
	p.mu.Unlock()
	_, err = c.Roll(ctx, p.policy())
	p.mu.Lock()
	p.current = nil
	died = life.dead
	p.mu.Unlock()
	p.tell("run %s: died %t: %s", run, died, said(err))
	return died, err
}

func (p *play) nextRun() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.res.Runs++
	return fmt.Sprintf("20000101-0000-%04x", p.res.Runs)
}

func (p *play) policy() planning.Policy { return planning.Policy{AcceptOutage: p.c.ControlPlanes == 2} }

// kill kills the running process, if any; away says that the next process runs on another machine.
func (p *play) kill(away bool) {
	p.mu.Lock()
	life := p.current
	if life == nil || life.dead {
		p.mu.Unlock()
		return
	}
	life.dead, p.away = true, away
	p.mu.Unlock()
	life.client.Kill()
	life.cancel()
}

// blink breaks every connection of the process once.
func (p *play) blink() {
	p.mu.Lock()
	life := p.current
	p.mu.Unlock()
	if life != nil && !life.dead {
		life.client.Cut()
		life.client.Mend()
	}
}

var errNoVM = errors.New("there is no such VM")

// vmOf returns a node's VM on any host; a foreign VM under its number does not count.
func (p *play) vmOf(node int) (world.VM, error) {
	n := p.lab.Nodes[node]
	vm, there := p.vm(n.VMID)
	if !there || vm.Config["name"] != n.Name {
		return world.VM{}, errNoVM
	}
	return vm, nil
}

// hostOf returns the VM's host, or the node's first host if the VM is not found.
func (p *play) hostOf(node int) string {
	if vm, err := p.vmOf(node); err == nil {
		return vm.Host
	}
	return p.lab.Nodes[node].Host
}

// tell records an event for the report of a failure.
func (p *play) tell(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.res.Story = append(p.res.Story, fmt.Sprintf("%s, %d changes: ", time.Since(p.begun).Round(time.Second), p.calls)+fmt.Sprintf(format, args...))
}

// fail records a problem once, with the call after which it was first seen.
func (p *play) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	what, _, _ := strings.Cut(text, " (after ")
	p.mu.Lock()
	known := p.problems[what]
	p.problems[what] = true
	if !known {
		p.res.Problems = append(p.res.Problems, text)
	}
	p.mu.Unlock()
	if !known {
		p.tell("PROBLEM: %s", text)
	}
}

// Tally adds up the results of a run.
type Tally struct {
	Schedules, NodeRolls, Runs, Calls, Faults, Violations int
	Virtual                                               time.Duration

	drawn   map[string]map[string]int // drawn values: word of a case's text, value, count
	persons map[string]int
}

func NewTally() *Tally { return &Tally{drawn: map[string]map[string]int{}, persons: map[string]int{}} }

func (t *Tally) Add(c Case, r Result) {
	t.Schedules++
	t.NodeRolls += r.NodeRolls
	t.Runs += r.Runs
	t.Calls += r.Calls
	t.Virtual += r.Virtual
	if len(r.Problems) > 0 {
		t.Violations++
	}
	count := func(subject, value string, n int) {
		if t.drawn[subject] == nil {
			t.drawn[subject] = map[string]int{}
		}
		t.drawn[subject][value] += n
	}
	for name, n := range r.Struck {
		t.Faults += n
		count("faults that struck", name, n)
	}
	for reason, n := range r.Persons {
		t.persons[reason] += n
	}
	for _, f := range c.fields() {
		if f.name != "faults" {
			count(f.name, cmp.Or(f.print(), "–"), 1)
		}
	}
	count("faults drawn", fmt.Sprint(len(c.Faults)), 1)
}

// Distribution prints the drawn values with a bar for each.
func (t *Tally) Distribution(w io.Writer) {
	const widest = 40
	for _, subject := range slices.Sorted(maps.Keys(t.drawn)) {
		fmt.Fprintln(w, subject)
		values := t.drawn[subject]
		most := slices.Max(slices.Collect(maps.Values(values)))
		for _, v := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(w, "  %-24s %6d %s\n", v, values[v], strings.Repeat("#", (values[v]*widest+most-1)/most))
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(t.persons)) {
		fmt.Fprintf(w, "took a person %d times: …%s\n", t.persons[reason], reason)
	}
}

// String returns the line of figures.
func (t *Tally) String() string {
	return fmt.Sprintf("%d schedules, %d node-rolls, %d runs, %d faults, %d violations, %s of virtual time, %d calls",
		t.Schedules, t.NodeRolls, t.Runs, t.Faults, t.Violations, t.Virtual.Round(time.Minute), t.Calls)
}

// renewed are keys that Proxmox regenerates when a VM is recreated.
var renewed = []string{"digest", "vmgenid", "meta"}

// ourSKU is what recast writes into the SMBIOS of a VM before it starts a blank machine.
var ourSKU = regexp.MustCompile(`,sku=[^,]*`)

// endedVMs compares the nodes' VMs with their initial state.
func (p *play) endedVMs() (problems []string) {
	for i, n := range p.lab.Nodes {
		was := p.first[i]
		vm, err := p.vmOf(i)
		if err != nil {
			problems = append(problems, fmt.Sprintf("VM %d of %s is gone", n.VMID, n.Name))
			continue
		}
		if !vm.Running {
			problems = append(problems, fmt.Sprintf("VM %d of %s is off", n.VMID, n.Name))
		}
		for _, key := range slices.Sorted(maps.Keys(union(was.Config, vm.Config))) {
			before, now := p.comparable(n, key, was.Config[key]), p.comparable(n, key, vm.Config[key])
			if before != now && !p.edited(i, key) {
				problems = append(problems, fmt.Sprintf("VM %d of %s: %s was %q and is %q", n.VMID, n.Name, key, before, now))
			}
		}
		if now, want := fmt.Sprint(p.lab.World.FirewallOf(n.VMID)), fmt.Sprint(p.firewall()); now != want {
			problems = append(problems, fmt.Sprintf("VM %d of %s: its firewall was %s and is %s", n.VMID, n.Name, want, now))
		}
	}
	return append(append(problems, p.endedSurge()...), p.strays()...)
}

func (p *play) firewall() world.Firewall {
	if p.c.Firewall {
		return walled
	}
	return world.Firewall{}
}

func union(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// comparable returns a value without what a replacement changes: names of volumes, and the serial of a new system disk.
func (p *play) comparable(n sim.Node, key, value string) string {
	switch {
	case slices.Contains(renewed, key):
		return ""
	case key == n.SystemDrive():
		return fmt.Sprint(value != "")
	case key == "description":
		said, _, _ := strings.Cut(value, "\nrecast: run=") // the creator of the VM
		return said
	case key == "smbios1" && (cluster.VM{Config: map[string]string{key: value}}).Proof() != "":
		return ourSKU.ReplaceAllString(value, "")
	case cluster.IsDiskKey(key) && value != "":
		volid, options, _ := strings.Cut(value, ",")
		storage, _, _ := strings.Cut(volid, ":")
		list := strings.Split(options, ",")
		slices.Sort(list)
		return storage + " " + strings.Join(list, ",")
	}
	return value
}

// edited reports whether a person has changed that key of a node's VM, or has migrated the VM.
func (p *play) edited(node int, key string) bool {
	return slices.ContainsFunc(p.c.Faults, func(f Fault) bool {
		return f.Where == node && (f.Name == key || f.Name == "migrate" || f.Name == "snapshot" && key == "parent")
	})
}

// strays returns the volumes that no configuration names, unless a fault may leave such volumes behind.
func (p *play) strays() (problems []string) {
	for _, f := range p.c.Faults {
		if k, _ := kindOf(f.Name); k.litters {
			return nil
		}
	}
	named := map[*world.Media]bool{}
	for _, vm := range p.lab.World.VMs() {
		for _, value := range vm.Config {
			volid, _, _ := strings.Cut(value, ",")
			if m := p.lab.World.Media(volid, vm.Host); m != nil {
				named[m] = true
			}
		}
	}
	for _, host := range p.lab.World.Hosts() {
		volumes, err := p.lab.World.Volumes(sim.DiskStorage, host)
		if err != nil {
			continue // its host is down
		}
		for _, v := range volumes {
			if !named[p.lab.World.Media(v.Volid, host)] {
				problems = append(problems, fmt.Sprintf("no configuration names volume %s on %s", v.Volid, host))
			}
		}
	}
	return problems
}
