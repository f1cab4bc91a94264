package world

import "time"

// ProxyFailure is how one host's API fails to reach another's: a status of
// AnyEvent::HTTP's, which Proxmox passes on, and how long that takes.
type ProxyFailure struct {
	Status int
	Reason string
	After  time.Duration
	Acts   bool // the other host does what it is asked, but its answer is lost
}

// The ways in which a host can't be reached from another, or doesn't answer within
// the thirty seconds that pveproxy waits.
var (
	ConnectionRefused  = ProxyFailure{Status: 595, Reason: "Connection refused"}
	NoRouteToHost      = ProxyFailure{Status: 595, Reason: "No route to host", After: 3 * time.Second}
	ConnectionTimedOut = ProxyFailure{Status: 595, Reason: "Connection timed out", After: 30 * time.Second}
	CertificateFailed  = ProxyFailure{Status: 596, Reason: "certificate verify failed"}
	AnswerTimedOut     = ProxyFailure{Status: 596, Reason: "Connection timed out", After: 30 * time.Second, Acts: true}
)

// BreakProxy makes a host unreachable for the API of every other one, which is
// all that is wrong with it. The zero ProxyFailure mends that.
func (w *World) BreakProxy(host string, f ProxyFailure) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f == (ProxyFailure{}) {
		delete(w.proxies, host)
		return
	}
	w.proxies[host] = f
}

// SetDaemon says whether pvedaemon of a host runs, to which its pveproxy hands
// what takes root's rights.
func (w *World) SetDaemon(host string, runs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noDaemon[host] = !runs
}

// DaemonRuns says whether pvedaemon of a host runs.
func (w *World) DaemonRuns(host string) bool {
	w.mu.Look()
	defer w.mu.Unlock()
	return !w.noDaemon[host]
}

// ProxyFailure says how asking a host through another one fails, if it does.
func (w *World) ProxyFailure(host string) (f ProxyFailure, broken bool) {
	w.mu.Look()
	defer w.mu.Unlock()
	if w.down[host] {
		return NoRouteToHost, true
	}
	f, broken = w.proxies[host]
	return f, broken
}
