package pveapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/internal/sim/record"
)

// holdNext holds the next change.
func (l *lab) holdNext(a record.Answer) (held *record.Held, status func() (late []int)) {
	held = record.Hold(a)
	var taken bool
	var statuses []int
	l.rec.Hooks(func(call record.Call) error {
		if !call.Mutation || call.Late || taken {
			return nil
		}
		taken = true
		return held
	}, func(call record.Call) {
		if call.Late {
			statuses = append(statuses, call.Status)
		}
	})
	return held, func() []int { return statuses }
}

// sent is the result of a change whose sender has a timeout.
func (l *lab) sent(method, path, form string, patience time.Duration) string {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(form))
	must(l.t, err)
	req.Header.Set("Authorization", "PVEAPIToken="+tokenID+"="+secret)
	if form != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	said := "no answer"
	res, err := l.client.Do(req)
	if err == nil {
		said = res.Status
		must(l.t, res.Body.Close())
	} else if errors.Is(err, context.DeadlineExceeded) {
		said = "gave up"
	}
	return fmt.Sprint(said, " after ", time.Since(began).Round(time.Second))
}

// there says whether the cluster has a VM.
func (l *lab) there(id int) bool { return l.vm(id).ID == id }

// settle waits until every worker has ended.
func (l *lab) settle() {
	for _, task := range l.world.Tasks() {
		l.world.WaitTask(task.UPID)
	}
}

// TestHeld: a request is processed after its sender got another answer, or none.
func TestHeld(t *testing.T) {
	t.Parallel()
	type row struct {
		answer   record.Answer
		patience time.Duration
		want     string
	}
	tests := map[string]row{
		"a proxy in front has given up": {record.GatewayTimeout, time.Hour, "504 Gateway Time-out after 1m0s"},
		"all workers are busy":          {record.BusyWorkers, time.Hour, "596 Connection timed out after 30s"},
		"the connection breaks":         {record.NoAnswer, time.Hour, "no answer after 0s"},
		"the sender is gone":            {record.GatewayTimeout, 10 * time.Second, "gave up after 10s"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, c row) {
		must(t, l.world.DefineVM("pve1", 9012, map[string]string{"name": "old"}, nil))
		held, late := l.holdNext(c.answer)
		if got := l.sent("DELETE", "/nodes/pve1/qemu/9012", "", c.patience); got != c.want {
			t.Errorf("the sender saw %q, want %q", got, c.want)
		}
		time.Sleep(time.Hour)
		if len(l.world.Tasks()) > 0 || !l.there(9012) {
			t.Fatal("it was carried out before it was due")
		}
		held.Deliver()
		l.settle()
		if l.there(9012) || len(late()) != 1 || late()[0] != http.StatusOK {
			t.Errorf("VM 9012 is there: %t; statuses of the late call: %v", l.there(9012), late())
		}
		held.Deliver() // only the first call counts
		if n := len(l.world.Tasks()); n != 1 {
			t.Errorf("%d tasks", n)
		}
	})
}

// TestHeldMeetsWhatIsThere: the state at the time of processing counts.
func TestHeldMeetsWhatIsThere(t *testing.T) {
	t.Parallel()
	type row struct {
		method, path, form string
		meanwhile          func(l *lab)
		status             int
		gone               bool
	}
	tests := map[string]row{
		"a new VM": {"DELETE", "/nodes/pve1/qemu/9012", "", func(l *lab) {
			l.do("DELETE", "/nodes/pve1/qemu/9012")
			l.settle()
			l.do("POST", "/nodes/pve1/qemu", "vmid=9012", "name=new")
			l.settle()
		}, 200, true},
		"protection": {"DELETE", "/nodes/pve1/qemu/9012", "", func(l *lab) {
			l.do("PUT", "/nodes/pve1/qemu/9012/config", "protection=1")
		}, 500, false},
		"another digest": {"PUT", "/nodes/pve1/qemu/9012/config", "name=later&digest=" + strings.Repeat("0", 40), func(*lab) {}, 500, false},
		"a token that has expired": {"DELETE", "/nodes/pve1/qemu/9012", "", func(l *lab) {
			l.world.ExpireToken(tokenID, true)
		}, 401, false},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, c row) {
		must(t, l.world.DefineVM("pve1", 9012, map[string]string{"name": "old"}, nil))
		held, late := l.holdNext(record.NoAnswer)
		l.sent(c.method, c.path, c.form, time.Hour)
		c.meanwhile(l)
		held.Deliver()
		l.settle()
		if len(late()) != 1 || late()[0] != c.status || l.there(9012) == c.gone {
			t.Errorf("late: %v, want %d; VM 9012 is there: %t", late(), c.status, l.there(9012))
		}
	})
}

// TestHeldInTime: a request that is processed in time is answered as usual.
func TestHeldInTime(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		held, _ := l.holdNext(record.GatewayTimeout)
		go func() {
			time.Sleep(20 * time.Second)
			held.Deliver()
		}()
		if got := l.sent("PUT", "/nodes/pve1/qemu/9011/config", "name=later", time.Hour); got != "200 OK after 20s" {
			t.Error(got)
		}
		if name := l.config(9011)["name"]; name != "later" {
			t.Errorf("name %v", name)
		}
	})
}

// TestHeldForEver: held requests are lost when their host crashes, or when the server ends.
func TestHeldForEver(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		held, late := l.holdNext(record.NoAnswer)
		l.sent("DELETE", "/nodes/pve1/qemu/9011", "", time.Hour)
		l.world.CrashHost("pve1")
		held.Deliver()
		if len(late()) > 0 || !l.there(9011) {
			t.Errorf("late: %v", late())
		}
		l.world.BootHost("pve1")
		_, _ = l.holdNext(record.NoAnswer) // never delivered
		l.sent("DELETE", "/nodes/pve1/qemu/9011", "", time.Hour)
	})
}

// TestRefusedIsNotHeld: a request without permission is refused at once.
func TestRefusedIsNotHeld(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		held, late := l.holdNext(record.GatewayTimeout)
		if got := l.as("root@pam!ci", "POST", "/nodes/pve1/qemu/9011/config", "text/plain", []byte("x")).Status; got != "506 upload 'Content-Type 'text/plain' not implemented" {
			t.Error(got)
		}
		held.Deliver()
		if len(late()) > 0 {
			t.Errorf("late: %v", late())
		}
	})
}

// TestOthersDrop: a server that can't hold a request drops it.
func TestOthersDrop(t *testing.T) {
	t.Parallel()
	r := record.New()
	held := record.Hold(record.NoAnswer)
	r.Hooks(func(record.Call) error { return held }, nil)
	if _, err := r.Begin(record.Call{Proto: "talos"}); err == nil {
		t.Error("it is not dropped")
	}
	held.Deliver() // returns
}
