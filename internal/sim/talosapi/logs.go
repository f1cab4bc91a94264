package talosapi

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// say writes a line to machined's log and to the kernel's.
func (m *machine) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	m.kernel.add("user", "warning", "[talos] "+text)
	m.log.add(time.Now().Format("2006/01/02 15:04:05.000000") + " " + text)
}

// etcdSays writes a line to the log of etcd's server, as its logger (zap) encodes it.
func (m *machine) etcdSays(level, caller, msg string, problem string) {
	line, err := json.Marshal(struct {
		Level  string `json:"level"`
		Ts     string `json:"ts"`
		Caller string `json:"caller"`
		Msg    string `json:"msg"`
		Error  string `json:"error,omitempty"`
	}{level, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z0700"), caller, msg, problem})
	if err != nil {
		panic(err) // strings always marshal
	}
	m.etcd.add(string(line))
}

// logs are the simulated logs by service. Those of most services are always empty.
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

// Logs implements the API.
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
	return log.send(n, req.GetFollow(), srv)
}

// LogsContainers implements the API.
func (s *machineService) LogsContainers(context.Context, *emptypb.Empty) (*machineapi.LogsContainersResponse, error) {
	answer := &machineapi.LogsContainer{}
	for id := range s.boot.logs() {
		answer.Ids = append(answer.Ids, id)
	}
	return &machineapi.LogsContainersResponse{Messages: []*machineapi.LogsContainer{answer}}, nil
}
