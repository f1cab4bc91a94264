package talosapi

import (
	"encoding/base32"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// eventLog is machined's events of one boot.
type eventLog struct {
	mu      sync.Mutex
	events  []event
	changed chan struct{} // closed at the next event
}

type event struct {
	id, actor string
	at        time.Time
	payload   *anypb.Any
}

func newEventLog() *eventLog { return &eventLog{changed: make(chan struct{})} }

// after returns the events from the nth on, and a channel closed at the next one.
func (l *eventLog) after(n int) ([]event, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events[n:len(l.events):len(l.events)], l.changed
}

// tell publishes an event of that actor, if any (runtime.NewEvent).
func (b *boot) tell(actor string, m proto.Message) {
	e := event{id: b.m.fw.eventID(), actor: actor, at: time.Now(), payload: &anypb.Any{
		TypeUrl: "talos/runtime/" + string(m.ProtoReflect().Descriptor().FullName()), Value: marshal(m),
	}}
	b.events.mu.Lock()
	defer b.events.mu.Unlock()
	b.events.events = append(b.events.events, e)
	close(b.events.changed)
	b.events.changed = make(chan struct{})
}

// eventID is an xid: later events have greater ones, across boots.
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
	switch {
	case req.GetTailEvents() < 0:
		n = 0
	case req.GetTailEvents() > 0:
		n = max(0, n-int(req.GetTailEvents()))
	case req.GetTailId() != "":
		n = len(past) - len(tail(past, func(e event) bool { return e.id > req.GetTailId() }))
	case req.GetTailSeconds() != 0:
		since := time.Now().Add(-time.Duration(req.GetTailSeconds()) * time.Second)
		n = len(past) - len(tail(past, func(e event) bool { return e.at.After(since) }))
	}
	for {
		events, changed := b.events.after(n)
		n += len(events)
		for _, e := range events {
			if req.GetWithActorId() != "" && e.actor != req.GetWithActorId() {
				continue
			}
			if err := srv.Send(&machineapi.Event{Data: e.payload, Id: e.id, ActorId: e.actor}); err != nil {
				return err
			}
		}
		if !awaitChange(srv.Context(), changed, time.Time{}) {
			return srv.Context().Err()
		}
	}
}

// tail is the events from the first wanted one on.
func tail(events []event, wanted func(event) bool) []event {
	i := slices.IndexFunc(events, wanted)
	if i < 0 {
		return nil
	}
	return events[i:]
}

// tellService publishes the change of a service since its latest event, as machined's
// services do (UpdateState). It needs b.showing held.
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

// tellStatus needs b.showing held.
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
		b.kernel.add("user", "warning", `[talos] machine is running and ready {"component": "controller-runtime", "controller": "runtime.MachineStatusController"}`)
	}
}
