package pve

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
)

// Everything that Proxmox says in an answer becomes one line without escape sequences.
func TestForeignTextIsOneLine(t *testing.T) {
	t.Parallel()
	quoted, err := json.Marshal("bad\x1b[31m\x1b]0;title\a\r\nfake line: \u202e\u2028\x7f")
	must(t, err)
	evil := string(quoted)
	const change = "DELETE /nodes/pve1/qemu/101"
	ended := data(`"` + testUPID + `"`)
	log := data(`[{"n":1,"t":` + evil + `}]`)
	for name, answers := range map[string]map[string]route{
		"status line": {change: raw("500 bad\x1b[31m \u202efake line", "")},
		"message":     {change: raw("500 Internal Server Error", `{"message":`+evil+`}`)},
		"parameter":   {change: raw("400 Parameter verification failed.", `{"errors":{`+evil+`:`+evil+`}}`)},
		"plain text":  {change: raw("500 ", "bad\x1b[31m fake line\r\n")},
		"task's end":  {change: ended, statusPath: data(`{"status":"stopped","exitstatus":` + evil + `}`), logPath: log},
		"task's log":  {change: ended, statusPath: stopped("unexpected status"), logPath: log},
		"warnings":    {change: ended, statusPath: stopped("WARNINGS: 1"), logPath: log},
		"setting":     {"GET /nodes/pve1/qemu/101/config": data("{\"net0\":[\"bad\",\n\t\"fake line\"]}")},
	} {
		runOnNode(t, name, func(t *testing.T, pve1 *fake, c *Client) {
			pve1.On("GET /nodes/pve1/qemu/101/config", data(`{"digest":"d"}`))
			pve1.On("GET /nodes/pve1/qemu/101/pending", data(`[]`))
			for request, answer := range answers {
				pve1.On(request, answer)
			}
			c, vm := c, cluster.VM{ID: 101, Host: "pve1", Digest: "d"}
			err := c.readConfig(t.Context(), &vm)
			if err == nil {
				err = c.DeleteVM(t.Context(), vm)
			}
			if err == nil {
				t.Fatal("no error")
			}
			if text := err.Error(); !strings.Contains(text, "bad") || !strings.Contains(text, "fake line") || strings.ContainsAny(text, "\x1b\a\r\n\u202e\u2028\x7f") {
				t.Errorf("%q", text)
			}
		})
	}
}
