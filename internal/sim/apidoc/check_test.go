package apidoc_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/apidoc"
	"github.com/recast-sh/recast/internal/sim/apidoc/apidoctest"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/record"
)

func load(t *testing.T) *apidoc.Schema {
	t.Helper()
	f := must.Get(os.Open("testdata/small.json"))(t)
	defer func() { _ = f.Close() }()
	return must.Get(apidoc.Load(f))(t)
}

// ask is a request: method and path, then the parameters.
func ask(methodAndPath string, params ...string) record.Call {
	method, path, _ := strings.Cut(methodAndPath, " ")
	c := record.Call{Proto: "proxmox", Method: method, Path: "/api2/json" + path, Params: map[string]string{}}
	for _, p := range params {
		name, value, _ := strings.Cut(p, "=")
		c.Params[name] = value
	}
	return c
}

// problems are a verdict's violations without the request.
func problems(v apidoc.Verdict) []string {
	var list []string
	for _, v := range v.Violations {
		list = append(list, strings.TrimPrefix(v.Param+": "+v.Problem, ": "))
	}
	return list
}

type checked struct {
	call record.Call
	want []string
}

func testCheck(t *testing.T, s *apidoc.Schema, cases map[string]checked) {
	t.Helper()
	must.Each(t, cases, func(t *testing.T, c checked) {
		v := s.Check(c.call)
		must.Equal(t, "violations", c.want, problems(v))
		must.Hold(t, len(v.Unchecked) == 0, "unchecked: %q", v.Unchecked)
	})
}

func TestCheckPath(t *testing.T) {
	t.Parallel()
	const undefined = "property is not defined in schema and the schema does not allow additional properties"
	testCheck(t, load(t), map[string]checked{
		"a read":                        {ask("GET /nodes/pve1/vm/100"), nil},
		"a query beside the parameters": {ask("GET /nodes/pve1/vm?vmid=100", "vmid=100"), nil},
		"a volume with a slash":         {ask("DELETE /nodes/pve1/content/local:iso/x.iso"), nil},
		"a volume with an escaped one":  {ask("DELETE /nodes/pve1/content/local:iso%2Fx.iso"), nil},
		"a name before a variable":      {ask("GET /nodes/pve1/vm/next"), nil},
		"another API":                   {record.Call{Method: "GET", Path: "/v2/"}, []string{"the path is not one of the API's"}},
		"a broken escape":               {ask("GET /nodes/%zz"), []string{"the path is not one of the API's"}},
		"no such path":                  {ask("GET /nodes/pve1/lxc"), []string{"there is no such path"}},
		"an escaped slash divides":      {ask("GET /nodes/pve1%2Fvm"), []string{"vmid: property is missing and it is not optional"}},
		"no such method":                {ask("PUT /nodes/pve1/vm/100"), []string{"/nodes/{node}/vm/{vmid} has no method PUT"}},
		"a variable of the wrong form":  {ask("GET /nodes/pve_1/vm/100"), []string{"node: invalid format - 'pve_1' is no pve-node"}},
		"a variable that is no number":  {ask("GET /nodes/pve1/vm/x"), []string{"vmid: type check ('integer') failed - got 'x'"}},
		"a variable given again":        {ask("GET /nodes/pve1/vm/100", "vmid=100"), nil},
		"a variable given otherwise":    {ask("GET /nodes/pve1/vm/100", "vmid=101"), []string{"vmid: duplicate parameter (already defined in URI) with conflicting values!"}},
		"a parameter where none is":     {ask("GET /nodes/pve1/vm/100", "full=1"), []string{"full: " + undefined}},
		"a parameter where all are":     {ask("GET /open", "anything=1"), nil},
		"parameters of another kind":    {ask("POST /rules", "rule=a"), []string{"it cannot be checked: its parameters are defined by allOf"}},
		"beyond the description":        {ask("GET /nodes/pve1/replication?guest=100", "guest=100"), nil},
	})
}

func TestCheckParameters(t *testing.T) {
	t.Parallel()
	const undefined = "property is not defined in schema and the schema does not allow additional properties"
	create := func(params ...string) record.Call { return ask("POST /nodes/pve1/vm", append(params, "vmid=100")...) }
	testCheck(t, load(t), map[string]checked{
		"a required one is missing":    {ask("POST /nodes/pve1/vm"), []string{"vmid: property is missing and it is not optional"}},
		"it is below its minimum":      {ask("POST /nodes/pve1/vm", "vmid=99"), []string{"vmid: invalid format - '99' is no pve-vmid"}},
		"an indexed one":               {create("net0=virtio", "net31=virtio"), nil},
		"its number is too high":       {create("net32=virtio"), []string{"net32: " + undefined}},
		"its number has a zero":        {create("net01=virtio"), []string{"net01: " + undefined}},
		"it has no number":             {create("net=virtio"), []string{"net: " + undefined}},
		"the description says how far": {create("serial3=socket", "serial4=socket"), []string{"serial4: " + undefined}},
		"a boolean":                    {create("onboot=1", "start=0"), nil},
		"a boolean in words":           {create("onboot=true"), []string{"onboot: type check ('boolean') failed - got 'true'"}},
		"an empty integer":             {create("cores="), []string{"cores: type check ('integer') failed - got ''"}},
		"a fraction as an integer":     {create("cores=1.5"), []string{"cores: type check ('integer') failed - got '1.5'"}},
		"a number":                     {create("cpulimit=1.5"), nil},
		"a number beyond its maximum":  {create("cpulimit=129"), []string{"cpulimit: value must have a maximum value of 128"}},
		"a minimum written as text":    {create("bwlimit=-1"), []string{"bwlimit: value must have a minimum value of 0"}},
		"one of an enumeration":        {create("bios=ovmf"), nil},
		"none of it":                   {create("bios=uefi"), []string{"bios: value 'uefi' does not have a value in the enumeration"}},
		"a pattern":                    {create("serial0=socket", "serial1=/dev/ttyS0"), nil},
		"no such pattern":              {create("serial0=tcp"), []string{"serial0: value does not match the regex pattern (/dev/[^,]+|socket) - got 'tcp'"}},
		"a pattern of Perl's":          {create("vendor=ab", "tag=ABC"), nil},
		"not one of Perl's":            {create("vendor=too long for it"), []string{"vendor: value does not match the regex pattern [A-Za-z ]{,8} - got 'too long for it'"}},
		"too long":                     {create("description=äöüßx"), []string{"description: value may only be 4 characters long"}},
		"long enough in characters":    {create("description=äöüß"), nil},
		"too short":                    {create("iface=a"), []string{"iface: value must be at least 2 characters long"}},
		"a list":                       {create("tags=talos;a,b c"), nil},
		"one of a list is wrong":       {create("tags=talos;ä"), []string{"tags: invalid format - 'ä' is no pve-tag"}},
		"what another one requires":    {create("checksum=ab", "checksum-algorithm=sha256"), nil},
		"it is missing":                {create("checksum=ab"), []string{"checksum-algorithm: missing property - 'checksum' requires this property"}},
		"a secret that no record has":  {ask("POST /ticket", "username=root@pam"), nil},
	})
}

func TestCheckPropertyString(t *testing.T) {
	t.Parallel()
	create := func(params ...string) record.Call { return ask("POST /nodes/pve1/vm", append(params, "vmid=100")...) }
	const mac = "BC:24:11:00:90:11"
	testCheck(t, load(t), map[string]checked{
		"keys":                        {create("net0=model=virtio,macaddr=" + mac + ",firewall=on"), nil},
		"a value without its key":     {create("net0=virtio,firewall=1"), nil},
		"a key that holds two":        {create("net0=virtio=" + mac), nil},
		"both at once":                {create("net0=virtio=" + mac + ",model=e1000"), []string{"net0: invalid format - duplicate key in comma-separated list property: model"}},
		"two of those":                {create("net0=model=e1000,virtio=" + mac), []string{"net0: invalid format - key alias 'model' is already defined"}},
		"an unknown key":              {create("net0=virtio,bridg=vmbr0"), []string{"net0: invalid format - invalid key in comma-separated list property: bridg"}},
		"a key twice":                 {create("net0=virtio,mtu=1,mtu=2"), []string{"net0: invalid format - duplicate key in comma-separated list property: mtu"}},
		"an empty value":              {create("net0=virtio,mtu="), []string{"net0: invalid format - missing key in comma-separated list property"}},
		"a required key is missing":   {create("net0=firewall=1"), []string{"net0.model: property is missing and it is not optional"}},
		"a key's enumeration":         {create("net0=ne3k"), []string{"net0.model: value 'ne3k' does not have a value in the enumeration"}},
		"a key's bounds":              {create("net0=virtio,mtu=0"), []string{"net0.mtu: value must have a minimum value of 1"}},
		"a key's format":              {create("net0=virtio=BD:24:11:00:90:11"), []string{"net0.macaddr: invalid format - 'BD:24:11:00:90:11' is no mac-addr"}},
		"a key's pattern of Perl's":   {create("net0=virtio,trunks=1-2;5"), nil},
		"what a key requires":         {create("net0=virtio,rate=5"), []string{"net0.mtu: missing property - 'net0.rate' requires this property"}},
		"no key that takes a value":   {create("numa0=1"), []string{"numa0: invalid format - value without key, but schema does not define a default key"}},
		"a boolean without its key":   {create("agent=1,fstrim=yes"), nil},
		"not in words":                {create("agent=on"), []string{"agent.enabled: type check ('boolean') failed - got 'on'"}},
		"a format with a name":        {create("smbios1=uuid=AAAAAAAA-0000-4000-8000-000000009011,serial=YQ==,base64=1"), nil},
		"wrong by such a format":      {create("smbios1=uuid=1"), []string{"smbios1.uuid: value does not match the regex pattern [a-fA-F0-9]{8}(?:-[a-fA-F0-9]{4}){3}-[a-fA-F0-9]{12} - got '1'"}},
		"a list in a property string": {create("boot=order=scsi0;ide2;net0"), nil},
		"a disk that there is not":    {create("boot=order=scsi31"), []string{"boot.order: invalid format - 'scsi31' is no pve-qm-bootdev"}},
		"an address and its gateway":  {create("ipconfig0=ip=192.0.2.1/24,gw=192.0.2.254,ip6=auto"), nil},
		"a gateway alone":             {create("ipconfig0=gw=192.0.2.254"), []string{"ipconfig0.ip: missing property - 'ipconfig0.gw' requires this property"}},
		"an address alone":            {create("ipconfig0=ip=192.0.2.1"), []string{"ipconfig0.ip: invalid format - '192.0.2.1' is no pve-ipv4-config"}},
		"a device of the host":        {create("hostpci0=0000:01:00.0,pcie=1", "hostpci1=mapping=gpu"), nil},
		"blanks only":                 {create("boot= "), nil},
	})
}

func TestUnchecked(t *testing.T) {
	t.Parallel()
	s := load(t)
	v := s.Check(ask("POST /nodes/pve1/vm", "vmid=100", "odd=a", "strange=b", "lookbehind=c"))
	want := []string{
		`lookbehind: pattern (?!a)b: error parsing regexp: invalid or unsupported Perl syntax: ` + "`(?!`",
		"odd: format pve-odd", "strange: keyword oneOf",
	}
	diff := cmp.Diff(want, v.Unchecked)
	must.Hold(t, diff == "" && len(v.Violations) == 0, "unchecked (-want +got):\n%s\nviolations %v", diff, v.Violations)
	exceptions := []string{
		`POST /nodes/{node}/vm lookbehind: pattern (?!a)b: error parsing regexp: invalid or unsupported Perl syntax: ` + "`(?!`",
		"POST /nodes/{node}/vm strange: keyword oneOf",
		"POST /rules: its parameters are defined by allOf",
	}
	must.Equal(t, "exceptions", exceptions, s.Exceptions())
}

func TestParameters(t *testing.T) {
	t.Parallel()
	s := load(t)
	got, ok := s.Parameters("GET", "/nodes/{node}/vm/{vmid}")
	want := []apidoc.Parameter{
		{Name: "node", Required: true, Type: "string"},
		{Name: "vmid", Required: true, Type: "integer", Minimum: new(100.0), Maximum: new(999999999.0)},
	}
	diff := cmp.Diff(want, got)
	must.Hold(t, diff == "" && ok, "parameters, there: %v (-want +got):\n%s", ok, diff)
	all, _ := s.Parameters("POST", "/nodes/{node}/vm")
	net := (apidoc.Parameter{Name: "net", Indexed: true, Last: 31, Type: "string"})
	must.Hold(t, slices.Contains(all, net), "%+v is not in %+v", net, all)
	if _, ok := s.Parameters("GET", "/nodes/{node}/lxc"); ok {
		t.Error("has the parameters of a path that it has not")
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"no JSON": "x", "no path": "{}", "a name that is no path": `{"nodes":{}}`, "no methods": `{"/nodes":[]}`,
		"a flag that is none": `{"/nodes":{"GET":{"parameters":{"properties":{"a":{"optional":"maybe"}}}}}}`,
	} {
		must.Hold(t, must.Err(apidoc.Load(strings.NewReader(text))) != nil, "%s: no error", name)
	}
}

// TestProxmoxSchema reads Proxmox's own schema.
func TestProxmoxSchema(t *testing.T) {
	t.Parallel()
	s := apidoctest.Schema(t)
	for _, e := range s.Exceptions() {
		t.Log("not checked:", e)
	}
	create := func(params ...string) record.Call {
		return ask("POST /nodes/pve1/qemu", append(params, "vmid=9011", "name=wk1")...)
	}
	testCheck(t, s, map[string]checked{
		"a VM for Talos": {create(
			"memory=4096", "cores=2", "cpu=host", "machine=q35", "bios=ovmf", "ostype=l26", "agent=1", "onboot=1", "scsihw=virtio-scsi-single",
			"smbios1=uuid=AAAAAAAA-0000-4000-8000-000000009011", "tags=talos", "net0=virtio=BC:24:11:00:90:11,bridge=vmbr0,queues=4",
			"scsi0=fast:10,serial=sys,discard=on,ssd=1,iothread=1", "efidisk0=fast:1,efitype=4m,pre-enrolled-keys=0", "tpmstate0=fast:1,version=v2.0",
			"ide2=isos:iso/boot.iso,media=cdrom", "boot=order=scsi0;ide2", "startup=order=1,up=30", "protection=1", "hotplug=disk,network",
		), nil},
		"a name that is none of DNS's": {ask("POST /nodes/pve1/qemu", "vmid=9011", "name=wk_1"), []string{"name: invalid format - 'wk_1' is no dns-name"}},
		"a drive without a volume":     {create("scsi0=serial=a"), []string{"scsi0.file: property is missing and it is not optional"}},
		"too little memory":            {create("memory=8"), []string{"memory.current: value must have a minimum value of 16"}},
		"a key that there is not": {ask("POST /nodes/pve1/qemu/100/move_disk", "disk=scsi31", "target-vmid=101"), []string{
			"disk: value 'scsi31' does not have a value in the enumeration",
		}},
		"a task": {ask("GET /nodes/pve1/tasks/UPID:pve1:00001234:0000ABCD:65000000:qmcreate:100:root@pam:/status"), nil},
		"a checksum without its algorithm": {ask("POST /nodes/pve1/storage/isos/upload", "content=iso", "filename=a.iso", "checksum=ab"), []string{
			"checksum-algorithm: missing property - 'checksum' requires this property",
		}},
	})
}
