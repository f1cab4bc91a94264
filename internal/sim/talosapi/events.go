package talosapi

import (
	"context"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
)

// journal is a list that grows until the next boot: machined's events, or the lines of a log.
type journal[T any] struct {
	mu      sync.Mutex
	entries []T
	changed chan struct{} // closed at the next entry
}

func (j *journal[T]) clear() { holding(&j.mu, func() { j.entries = nil }) }

func (j *journal[T]) add(entry T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry)
	if j.changed != nil {
		close(j.changed)
	}
	j.changed = make(chan struct{})
}

// after returns the entries from the nth on, and a channel closed at the next entry.
func (j *journal[T]) after(n int) ([]T, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = make(chan struct{})
	}
	return j.entries[n:len(j.entries):len(j.entries)], j.changed
}

// follow sends the entries from the nth on; with more, it also sends new entries until ctx ends.
func (j *journal[T]) follow(ctx context.Context, n int, more bool, send func(T) error) error {
	for {
		entries, changed := j.after(n)
		n += len(entries)
		for _, e := range entries {
			if err := send(e); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
		if !awaitChange(ctx, changed, time.Time{}) {
			return ctx.Err()
		}
	}
}

type event struct {
	id, actor string
	at        time.Time
	payload   *anypb.Any
}

// tell publishes an event of that actor, if any (runtime.NewEvent).
func (b *boot) tell(actor string, m proto.Message) {
	b.events.add(event{id: b.m.fw.eventID(), actor: actor, at: time.Now(), payload: &anypb.Any{
		TypeUrl: "talos/runtime/" + string(m.ProtoReflect().Descriptor().FullName()), Value: marshal(m),
	}})
}

// eventID returns an xid: later events have greater IDs, across boots.
func (fw *Firmware) eventID() string {
	var id [12]byte
	binary.BigEndian.PutUint32(id[:], uint32(time.Now().Unix()))
	binary.BigEndian.PutUint64(id[4:], fw.lastEvent.Add(1))
	return strings.ToLower(base32.HexEncoding.WithPadding(base32.NoPadding).EncodeToString(id[:]))
}

// Events implements the API: an empty event first, then the requested past events, then
// new ones until the machine goes down.
func (s *machineService) Events(req *machineapi.EventsRequest, srv grpc.ServerStreamingServer[machineapi.Event]) error {
	b := s.boot
	if err := srv.Send(&machineapi.Event{Data: &anypb.Any{}, Id: b.m.fw.eventID(), ActorId: req.GetWithActorId()}); err != nil {
		return err
	}
	past, _ := b.events.after(0)
	n := len(past)
	first := func(wanted func(event) bool) int {
		if i := slices.IndexFunc(past, wanted); i >= 0 {
			return i
		}
		return len(past)
	}
	switch {
	case req.GetTailEvents() < 0:
		n = 0
	case req.GetTailEvents() > 0:
		n = max(0, n-int(req.GetTailEvents()))
	case req.GetTailId() != "":
		n = first(func(e event) bool { return e.id > req.GetTailId() })
	case req.GetTailSeconds() != 0:
		since := time.Now().Add(-time.Duration(req.GetTailSeconds()) * time.Second)
		n = first(func(e event) bool { return e.at.After(since) })
	}
	return b.events.follow(srv.Context(), n, true, func(e event) error {
		if req.GetWithActorId() != "" && e.actor != req.GetWithActorId() {
			return nil
		}
		return srv.Send(&machineapi.Event{Data: e.payload, Id: e.id, ActorId: e.actor})
	})
}

// tellService publishes the change of a service since its latest event, as machined's services do (UpdateState). The
// caller must hold b.showing.
func (b *boot) tellService(s service) {
	if b.shown[s.id] == s {
		return
	}
	if b.shown == nil {
		b.shown = map[string]service{}
	}
	b.shown[s.id] = s
	b.tell("", &machineapi.ServiceStateEvent{
		Service: s.id, Action: machineapi.ServiceStateEvent_Action(machineapi.ServiceStateEvent_Action_value[strings.ToUpper(s.state)]),
		Message: s.message, Health: s.info().GetHealth(),
	})
	b.m.say("service[%s](%s): %s", s.id, s.state, s.message)
}

// tellStatus publishes the machine's status if it has changed. The caller must hold b.showing.
func (b *boot) tellStatus(spec runtime.MachineStatusSpec) {
	e := &machineapi.MachineStatusEvent{
		Stage:  machineapi.MachineStatusEvent_MachineStage(spec.Stage),
		Status: &machineapi.MachineStatusEvent_MachineStatus{Ready: spec.Status.Ready},
	}
	for _, u := range spec.Status.UnmetConditions {
		e.Status.UnmetConditions = append(e.Status.UnmetConditions, &machineapi.MachineStatusEvent_MachineStatus_UnmetCondition{Name: u.Name, Reason: u.Reason})
	}
	if proto.Equal(e, b.told) {
		return
	}
	b.told = e
	b.tell("", e)
	if spec.Stage == runtime.MachineStageRunning && spec.Status.Ready {
		b.m.kernel.add("user", "warning", `[talos] machine is running and ready {"component": "controller-runtime", "controller": "runtime.MachineStatusController"}`)
	}
}

// textLog holds the lines of a log.
type textLog = journal[string]

// sendLines streams the lines from the nth on; with follow, it also streams new lines until the caller ends.
func sendLines(l *textLog, n int, follow bool, srv grpc.ServerStreamingServer[common.Data]) error {
	return l.follow(srv.Context(), n, follow, func(line string) error {
		return srv.Send(&common.Data{Bytes: []byte(line + "\n")})
	})
}

// kernelLog is the kernel log of one boot, as Dmesg sends it.
type kernelLog struct{ textLog }

// restart begins the log of a new kernel.
func (k *kernelLog) restart(version, cmdline string) {
	k.clear()
	k.add("kern", "notice", "Linux version "+version)
	k.add("kern", "info", "Command line: "+cmdline)
}

// add appends a line in the format of machined's Dmesg.
func (k *kernelLog) add(facility, priority, text string) {
	k.textLog.add(fmt.Sprintf("%s: %7s: [%s]: %s", facility, priority, time.Now().Format(time.RFC3339Nano), text))
}

func (s *machineService) Dmesg(req *machineapi.DmesgRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	n := 0
	if req.GetTail() {
		lines, _ := s.boot.m.kernel.after(0)
		n = len(lines)
	}
	return sendLines(&s.boot.m.kernel.textLog, n, req.GetFollow(), srv)
}

// say writes a line to machined's log and to the kernel's.
func (m *machine) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	m.kernel.add("user", "warning", "[talos] "+text)
	m.log.add(time.Now().Format("2006/01/02 15:04:05.000000") + " " + text)
}

// etcdSays writes a line to the log of etcd's server, as its logger (zap) encodes it.
func (m *machine) etcdSays(level, caller, msg string, problem string) {
	m.etcd.add(string(encoded(struct {
		Level  string `json:"level"`
		Ts     string `json:"ts"`
		Caller string `json:"caller"`
		Msg    string `json:"msg"`
		Error  string `json:"error,omitempty"`
	}{level, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z0700"), caller, msg, problem})))
}

// logs returns the simulated logs by service. The logs of most services are always empty.
func (b *boot) logs() map[string]*textLog {
	all := map[string]*textLog{"kernel": &b.m.kernel.textLog, "machined": &b.m.log}
	for _, s := range b.services() {
		if s.state == stateRunning && all[s.id] == nil {
			all[s.id] = &textLog{}
		}
	}
	delete(all, "etcd")
	if lines, _ := b.m.etcd.after(0); len(lines) > 0 {
		all["etcd"] = &b.m.etcd
	}
	return all
}

func (s *machineService) Logs(req *machineapi.LogsRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	var log *textLog
	if req.GetNamespace() == constants.SystemContainerdNamespace || req.GetId() == "kubelet" {
		var registered bool
		if log, registered = s.boot.logs()[req.GetId()]; !registered {
			return fmt.Errorf("log %q was not registered", req.GetId())
		}
	} else {
		all, err := s.boot.containers(srv.Context(), req.GetNamespace(), req.GetDriver())
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(c *machineapi.ContainerInfo) bool { return c.GetId() == req.GetId() }) {
			return fmt.Errorf("container %q not found", req.GetId())
		}
		log = &textLog{}
	}
	n := 0
	if tail := int(req.GetTailLines()); tail >= 0 {
		lines, _ := log.after(0)
		n = max(0, len(lines)-tail)
	}
	return sendLines(log, n, req.GetFollow(), srv)
}

func (s *machineService) LogsContainers(context.Context, *emptypb.Empty) (*machineapi.LogsContainersResponse, error) {
	answer := &machineapi.LogsContainer{}
	for id := range s.boot.logs() {
		answer.Ids = append(answer.Ids, id)
	}
	return &machineapi.LogsContainersResponse{Messages: []*machineapi.LogsContainer{answer}}, nil
}

// sequence is machined's running sequence, as reported in its events and in the kernel's
// log (v1alpha1_controller.go). Only the boot's own goroutine uses it.
type sequence struct {
	b      *boot
	name   string
	actor  string // ID of the request, if any
	phases []phase
	at     int // index of the running phase; -1 before the first

	began, phaseBegan time.Time
}

// errCanceled ends a sequence that another sequence replaces.
var errCanceled = errors.New("context canceled")

// sequence begins a sequence and cancels the running sequence.
func (b *boot) sequence(actor, name string, phases []phase) {
	if b.seq != nil {
		b.seq.fail(errCanceled)
	}
	s := &sequence{b: b, name: name, actor: actor, phases: phases, at: -1, began: time.Now()}
	b.seq = s
	b.tell(actor, &machineapi.SequenceEvent{Sequence: name, Action: machineapi.SequenceEvent_START})
	b.m.say("%s sequence: %d phase(s)", name, len(phases))
}

// to advances to the named phase, which then runs. A phase that is over, or that the sequence lacks, changes nothing.
func (s *sequence) to(name string) {
	if s == nil { // machined has failed
		return
	}
	later := slices.IndexFunc(s.phases[s.at+1:], func(p phase) bool { return p.name == name })
	for wanted := s.at + 1 + later; s.at < wanted; {
		s.next()
	}
}

// next ends the running phase and begins the next one.
func (s *sequence) next() {
	if s.at >= 0 {
		s.tellPhase(machineapi.PhaseEvent_STOP, fmt.Sprintf("done, %s", time.Since(s.phaseBegan)))
		s.b.m.say("%s: done, %s", s, time.Since(s.phaseBegan))
	}
	s.at++
	for s.at < len(s.phases) && s.phases[s.at].skip {
		s.at++
	}
	if s.at == len(s.phases) {
		return
	}
	s.phaseBegan = time.Now()
	s.b.m.say("%s: %d tasks(s)", s, len(s.phases[s.at].tasks))
	s.tellPhase(machineapi.PhaseEvent_START, "starting")
}

// String returns the running phase in the log's form.
func (s *sequence) String() string {
	return fmt.Sprintf("phase %s (%d/%d)", s.phases[s.at].name, s.at+1, len(s.phases))
}

// tellPhase reports the start or end of the running phase and of its tasks. The tasks start after the phase and end
// before it; said is the log's word.
func (s *sequence) tellPhase(action machineapi.PhaseEvent_Action, said string) {
	p := s.phases[s.at]
	e := &machineapi.PhaseEvent{Phase: p.name, Action: action}
	if action == machineapi.PhaseEvent_START {
		s.b.tell(s.actor, e)
	}
	for i, task := range p.tasks {
		s.b.tell(s.actor, &machineapi.TaskEvent{Task: task, Action: machineapi.TaskEvent_Action(action)})
		s.b.m.say("task %s (%d/%d): %s", task, i+1, len(p.tasks), said)
	}
	if action == machineapi.PhaseEvent_STOP {
		s.b.tell(s.actor, e)
	}
}

// end runs the rest of the sequence.
func (s *sequence) end() {
	for s.at < len(s.phases) {
		s.next()
	}
	s.b.seq = nil
	s.b.tell(s.actor, &machineapi.SequenceEvent{Sequence: s.name, Action: machineapi.SequenceEvent_STOP})
	s.b.m.say("%s sequence: done: %s", s.name, time.Since(s.began))
}

// fail ends the sequence in the running phase and returns machined's error.
func (s *sequence) fail(err error) error {
	s.tellPhase(machineapi.PhaseEvent_STOP, "failed: "+err.Error())
	err = fmt.Errorf("error running phase %d in %s sequence: task 1/%d: failed, %w", s.at+1, s.name, len(s.phases[s.at].tasks), err)
	s.b.m.say("%s: failed", s)
	s.b.seq = nil
	s.b.tell(s.actor, &machineapi.SequenceEvent{Sequence: s.name, Action: machineapi.SequenceEvent_STOP})
	s.b.m.say("%s sequence: failed", s.name)
	code := common.Code_FATAL
	if errors.Is(err, errCanceled) {
		code = common.Code_CANCELED
	}
	s.b.tell(s.actor, &machineapi.SequenceEvent{Sequence: s.name, Action: machineapi.SequenceEvent_NOOP, Error: &common.Error{
		Code: code, Message: "sequence failed: " + err.Error(),
	}})
	return err
}

// phase is one step of a machined sequence, with its parallel tasks.
type phase struct {
	name  string
	tasks []string
	skip  bool // counted as a phase of the sequence but never run
}

// The sequences' phases with their tasks (v1alpha1_sequencer.go and v1alpha1_sequencer_tasks.go of 1.12 to 1.14): "+"
// is since 1.14, "-" until 1.13, "?" for machines that the lab does not have.
var (
	initializePhases = []string{
		"systemRequirements enforceKSPPRequirements",
		"-earlyServices startUdevd startMachined startApid startAuditd startSyslogd startContainerd",
		"+earlyServices startMachined waitForUdevd startApid startAuditd startSyslogd startContainerd",
		"-usb waitForUSB", "meta reloadMeta", "?cleanupBootloader cleanupBootloader", "dashboard startDashboard",
		"?wipeDisks resetSystemDiskPartitions", "?haltIfInstalled haltIfInstalled", "config loadConfig",
	}
	installPhases = []string{
		"env setUserEnvVars", "install install", "meta reloadMeta", "saveMeta flushMeta",
		"+denyNewServices denyNewServices", "+stopContainers teardownContainerLifecycle",
		"volumeFinalize teardownLifecycle", "stopEverything stopAllServices", "kexec kexecPrepare", "reboot reboot",
	}
	bootPhases = []string{
		"memorySizeCheck memorySizeCheck", "diskSizeCheck diskSizeCheck", "env setUserEnvVars waitForCARoots", "dbus startDBus",
		"ephemeral mountEphemeralPartition", "-udevSetup writeUdevRules", "+promotableVolumes mountPromotableSystemPartitions",
		"userDisks mountUserDisks", "userSetup writeUserFiles", "startEverything startAllServices",
	}
	preShutdownPhases = []string{"+preShutdown preShutdownServices", "dbus stopDBus"}
	stopAllPhases     = []string{
		"+denyNewServices denyNewServices", "+stopContainers teardownContainerLifecycle", "stopServices stopServicesForUpgrade",
		"umount unmountPodMounts", "unmountBind unmountSystemDiskBindMounts", "+unmountPromotable unmountPromotableSystemPartitions",
		"unmountSystem unmountEphemeralPartition", "volumeFinalize teardownLifecycle",
	}
	stopPhases   = []string{"stopEverything stopAllServices"}
	kexecPhases  = []string{"+stopEverything stopAllServices", "kexec kexecPrepare", "-stopEverything stopAllServices"}
	drainPhases  = []string{"drain cordonAndDrainNode"}
	podsPhases   = []string{"cleanup stopAllPods"}
	rebootPhases = []string{"reboot reboot"}
	poweroff     = []string{"shutdown shutdown"}
)

// phases returns the phases of a release.
func (r release) phases(lists ...[]string) []phase {
	other := "+"
	if r.fourteen() {
		other = "-"
	}
	var all []phase
	for _, text := range slices.Concat(lists...) {
		if strings.HasPrefix(text, other) {
			continue
		}
		words := strings.Fields(strings.TrimLeft(text, "+-?"))
		tasks := slices.DeleteFunc(words[1:], func(task string) bool { return task == "startApid" && r.bareMaintenance })
		all = append(all, phase{name: words[0], tasks: tasks, skip: strings.HasPrefix(text, "?")})
	}
	return all
}

// rebooting returns the phases of a reboot through the API.
func (r release) rebooting() []phase {
	return r.phases(podsPhases, preShutdownPhases, stopAllPhases, kexecPhases, rebootPhases)
}

// shuttingDown returns the phases of a shutdown.
func (r release) shuttingDown(drain bool) []phase {
	lists := [][]string{{"storeShutdown storeShutdownEmergency"}}
	if drain {
		lists = append(lists, drainPhases)
	}
	return r.phases(append(lists, podsPhases, preShutdownPhases, stopAllPhases, stopPhases, poweroff)...)
}

// upgrading returns the phases of an upgrade that the machine runs itself.
func (r release) upgrading(then outcome) []phase {
	lists := [][]string{
		{"+denyNewServices denyNewServices"},
		drainPhases, podsPhases, preShutdownPhases,
		{
			"+stopContainers teardownContainerLifecycle", "stopServices stopServicesForUpgrade", "unmount unmountPodMounts",
			"unmountBind unmountSystemDiskBindMounts", "+unmountPromotable unmountPromotableSystemPartitions",
			"unmountSystem unmountEphemeralPartition", "volumeFinalize teardownLifecycle", "upgrade upgrade", "meta reloadMeta",
		},
	}
	if then == kexec {
		lists = append(lists, []string{"kexec kexecPrepare"})
	}
	return r.phases(append(lists, stopPhases, rebootPhases)...)
}

// resetting returns the phases of a reset; member: the machine is an etcd member.
func (r release) resetting(req *machineapi.ResetRequest, member bool) []phase {
	system, partitions := req.GetMode() != machineapi.ResetRequest_USER_DISKS, len(req.GetSystemPartitionsToWipe()) > 0
	lists := [][]string{podsPhases, preShutdownPhases}
	if req.GetGraceful() {
		lists = [][]string{drainPhases, {"cleanup removeAllPods"}, preShutdownPhases}
	}
	when := func(yes bool, phases []string) {
		if yes {
			lists = append(lists, phases)
		}
	}
	when(req.GetGraceful() && member, []string{"leave leaveEtcd"})
	lists = append(lists, []string{"preReset sendResetSignal"}, stopAllPhases)
	when(partitions, kexecPhases)
	when(!partitions, stopPhases)
	lists = append(lists, []string{"forceCleanup forceCleanup"})
	when(system && !partitions, []string{"reset resetSystemDisk"})
	when(system && partitions, []string{"resetSpec resetSystemDiskSpec"})
	when(len(req.GetUserDisksToWipe()) > 0, []string{"resetUserDisks resetUserDisks"})
	when(req.GetReboot(), rebootPhases)
	when(!req.GetReboot(), poweroff)
	return r.phases(lists...)
}
