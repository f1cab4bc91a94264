package apidoctest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/sim/apidoc"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
)

// recordingTB is a testing.TB that records calls.
type recordingTB struct {
	testing.TB
	said []string
}

func (t *recordingTB) Error(args ...any)      { t.said = append(t.said, "error: "+fmt.Sprint(args...)) }
func (t *recordingTB) Log(args ...any)        { t.said = append(t.said, fmt.Sprint(args...)) }
func (t *recordingTB) Attr(key, value string) { t.said = append(t.said, key+"="+value) }

func TestWhatCounts(t *testing.T) {
	t.Parallel()
	f := must.Get(os.Open("../testdata/small.json"))(t)
	defer func() { _ = f.Close() }()
	schema := must.Get(apidoc.Load(f))(t)
	rec := record.New()
	for _, c := range []struct {
		agent, proto string
		status       int
		params       string
	}{
		{"recast", "proxmox", 200, "vmid=100"},
		{"recast", "proxmox", 500, "vmid=100"},
		{"recast", "proxmox", 400, "vmid=100 cores=one"},
		{"recast", "proxmox", 0, "vmid=100 cores=one"}, // no answer; reported once
		{"recast", "proxmox", 400, "vmid=100 meant=1"},
		{"recast", "proxmox", 200, "vmid=100 odd=1"},
		{"recast", "registry", 200, ""},
		{"curl", "proxmox", 400, "cores=one"},
		{"curl", "proxmox", 200, "vmid=100 bios=uefi"},
	} {
		params := map[string]string{}
		for param := range strings.FieldsSeq(c.params) {
			name, value, _ := strings.Cut(param, "=")
			params[name] = value
		}
		call := must.Get(rec.Begin(record.Call{Proto: c.proto, Agent: c.agent, Method: "POST", Path: "/api2/json/nodes/pve1/vm", Params: params}))(t)
		call.Status = c.status
		rec.End(call)
	}
	r, to := &Requests{recorder: rec}, &recordingTB{TB: t}
	r.Wrong("meant")
	r.check(to, schema)
	want := []string{
		"error: POST /api2/json/nodes/pve1/vm: cores: type check ('integer') failed - got 'one'",
		"not checked: POST /nodes/{node}/vm: odd: format pve-odd",
		"error: POST /api2/json/nodes/pve1/vm: bios: value 'uefi' does not have a value in the enumeration",
		"sum:requests=6", "sum:schema-violations=3",
	}
	must.Equal(t, "recorded", want, to.said)
}
