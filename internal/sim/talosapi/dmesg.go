package talosapi

import (
	"fmt"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
)

// kernelLog is what the kernel of one boot keeps, as Dmesg sends it.
type kernelLog struct {
	mu      sync.Mutex
	lines   []string
	changed chan struct{} // closed at the next line
}

// restart begins the log of another kernel.
func (k *kernelLog) restart(version, cmdline string) {
	k.mu.Lock()
	k.lines = nil
	k.mu.Unlock()
	k.add("kern", "notice", "Linux version "+version)
	k.add("kern", "info", "Command line: "+cmdline)
}

// add appends a line. Dmesg's format is machined's.
func (k *kernelLog) add(facility, priority, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lines = append(k.lines, fmt.Sprintf("%s: %7s: [%s]: %s\n", facility, priority, time.Now().Format(time.RFC3339Nano), text))
	if k.changed != nil {
		close(k.changed)
	}
	k.changed = make(chan struct{})
}

// after are the lines from the nth on, and a channel closed at the next one.
func (k *kernelLog) after(n int) ([]string, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lines[n:len(k.lines):len(k.lines)], k.changed
}

// Dmesg implements the API.
func (s *machineService) Dmesg(req *machineapi.DmesgRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	if err := s.sinceThirteen("Dmesg"); err != nil {
		return err
	}
	n := 0
	if req.GetTail() {
		lines, _ := s.boot.kernel.after(0)
		n = len(lines)
	}
	for {
		lines, changed := s.boot.kernel.after(n)
		n += len(lines)
		for _, line := range lines {
			if err := srv.Send(&common.Data{Bytes: []byte(line)}); err != nil {
				return err
			}
		}
		if !req.GetFollow() {
			return nil
		}
		if !awaitChange(srv.Context(), changed, time.Time{}) {
			return srv.Context().Err()
		}
	}
}
