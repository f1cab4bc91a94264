package talosapi

import (
	"fmt"
	"sync"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/common"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
)

// textLog is the lines of a log; they are only removed by the next boot.
type textLog struct {
	mu      sync.Mutex
	lines   []string
	changed chan struct{} // closed at the next line
}

// clear removes all lines.
func (l *textLog) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = nil
}

// add appends a line.
func (l *textLog) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line+"\n")
	if l.changed != nil {
		close(l.changed)
	}
	l.changed = make(chan struct{})
}

// after returns the lines from the nth on, and a channel closed at the next one.
func (l *textLog) after(n int) ([]string, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.lines[n:len(l.lines):len(l.lines)], l.changed
}

// send streams the lines from the nth on, and with follow also new lines until the caller
// ends.
func (l *textLog) send(n int, follow bool, srv grpc.ServerStreamingServer[common.Data]) error {
	for {
		lines, changed := l.after(n)
		n += len(lines)
		for _, line := range lines {
			if err := srv.Send(&common.Data{Bytes: []byte(line)}); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		if !awaitChange(srv.Context(), changed, time.Time{}) {
			return srv.Context().Err()
		}
	}
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

// Dmesg implements the API.
func (s *machineService) Dmesg(req *machineapi.DmesgRequest, srv grpc.ServerStreamingServer[common.Data]) error {
	n := 0
	if req.GetTail() {
		lines, _ := s.boot.kernel.after(0)
		n = len(lines)
	}
	return s.boot.kernel.send(n, req.GetFollow(), srv)
}
