package world

import "time"

// ProxyFailure is how requests from one host's API to another's fail: a status of
// AnyEvent::HTTP, which Proxmox passes on, and the delay.
type ProxyFailure struct {
	Status int
	Reason string
	After  time.Duration
	Acts   bool // the other host executes the request, but its answer is lost
}

// The ways in which a host can't reach another, or gets no answer within the thirty
// seconds that pveproxy waits.
var (
	ConnectionRefused  = ProxyFailure{Status: 595, Reason: "Connection refused"}
	NoRouteToHost      = ProxyFailure{Status: 595, Reason: "No route to host", After: 3 * time.Second}
	ConnectionTimedOut = ProxyFailure{Status: 595, Reason: "Connection timed out", After: 30 * time.Second}
	CertificateFailed  = ProxyFailure{Status: 596, Reason: "certificate verify failed"}
	AnswerTimedOut     = ProxyFailure{Status: 596, Reason: "Connection timed out", After: 30 * time.Second, Acts: true}
)

// BreakProxy makes a host unreachable for the APIs of all others; nothing else fails. The
// zero ProxyFailure repairs it.
func (w *World) BreakProxy(host string, f ProxyFailure) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f == (ProxyFailure{}) {
		delete(w.proxies, host)
		return
	}
	w.proxies[host] = f
}

// SetDaemon says whether a host's pvedaemon runs, which its pveproxy needs for requests
// that require root.
func (w *World) SetDaemon(host string, runs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noDaemon[host] = !runs
}

// DaemonRuns says whether a host's pvedaemon runs.
func (w *World) DaemonRuns(host string) bool {
	w.mu.Look()
	defer w.mu.Unlock()
	return !w.noDaemon[host]
}

// ProxyFailure says how requests to a host through another one fail, if they do.
func (w *World) ProxyFailure(host string) (f ProxyFailure, broken bool) {
	w.mu.Look()
	defer w.mu.Unlock()
	if w.down[host] {
		return NoRouteToHost, true
	}
	f, broken = w.proxies[host]
	return f, broken
}
