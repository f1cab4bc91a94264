package pveapi

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/recast-sh/recast/internal/sim/world"
)

// fileParams are the common parameters of uploads and downloads.
var fileParams = []string{"content", "filename", "checksum", "checksum-algorithm"}

func publishRoutes() []route {
	const at = "/nodes/{node}/storage/{storage}"
	permit := []demand{{"/storage/{storage}", []string{"Datastore.AllocateTemplate"}}}
	return []route{
		{
			method: "POST", path: at + "/upload", permit: permit, params: append([]string{"tmpfilename"}, fileParams...),
			need: []string{"content", "filename"}, local: true, handle: upload,
		},
		{
			method: "POST", path: at + "/download-url", permit: permit, network: true,
			params: append([]string{"url", "compression", "verify-certificates"}, fileParams...),
			need:   []string{"content", "filename", "url"}, handle: downloadURL,
		},
		{
			method: "GET", path: "/nodes/{node}/query-url-metadata", network: true, daemonless: true,
			params: []string{"url", "verify-certificates"}, need: []string{"url"}, handle: queryURLMetadata,
		},
	}
}

// mayFetch checks the privilege to make a node access its network. Either of two privileges will
// do, so the error names no path (exec_api2_perm_check of RPCEnvironment.pm).
func (c *call) mayFetch() error {
	old := c.Check(c.user, "/", "Sys.Audit") == nil && c.Check(c.user, "/", "Sys.Modify") == nil
	if old || c.may("/nodes/"+c.node(), "Sys.AccessNetwork") {
		return nil
	}
	return &world.Error{Status: http.StatusForbidden, Message: "Permission check failed"}
}

// checkFile checks the parameters of an upload or download against the schema.
func (c *call) checkFile() error {
	wrong := map[string]string{}
	oneOf := func(name string, values ...string) {
		if value, ok := c.params[name]; ok && !slices.Contains(values, value) {
			wrong[name] = fmt.Sprintf("value '%s' does not have a value in the enumeration '%s'", value, strings.Join(values, ", "))
		}
	}
	oneOf("content", "iso", "vztmpl", "import")
	oneOf("checksum-algorithm", "md5", "sha1", "sha224", "sha256", "sha384", "sha512")
	for name, other := range map[string]string{"checksum": "checksum-algorithm", "checksum-algorithm": "checksum"} {
		if c.params[name] != "" && c.params[other] == "" {
			wrong[other] = fmt.Sprintf("missing property - '%s' requires this property", name)
		}
	}
	if len(c.params["filename"]) > 255 {
		wrong["filename"] = "value may only be 255 characters long"
	}
	c.checkURL(wrong)
	if len(wrong) > 0 {
		return &world.Error{Status: http.StatusBadRequest, Message: "Parameter verification failed.", Params: wrong}
	}
	return nil
}

func (c *call) checkURL(wrong map[string]string) {
	const pattern = `https?://.*`
	if address, ok := c.params["url"]; ok && !regexp.MustCompile(`^`+pattern+`$`).MatchString(address) {
		wrong["url"] = fmt.Sprintf("value does not match the regex pattern '%s'", pattern)
	}
}

// insecure says whether to skip the verification of certificates; by default they are
// verified.
func (c *call) insecure() bool {
	return c.params["verify-certificates"] == "0"
}

func upload(c *call) (any, error) {
	if err := c.checkFile(); err != nil {
		if c.spool != nil {
			c.spool.Close()
		}
		return nil, err
	}
	return c.Upload(c.user, c.host, c.node(), world.UploadRequest{
		Storage: c.storage(), Content: c.params["content"], Filename: c.params["filename"],
		Algorithm: c.params["checksum-algorithm"], Checksum: c.params["checksum"], Spool: c.spool,
	})
}

func downloadURL(c *call) (any, error) {
	if c.params["compression"] != "" {
		return nil, unsupported("a download with compression")
	}
	if err := c.checkFile(); err != nil {
		return nil, err
	}
	return c.Download(c.user, c.node(), world.DownloadRequest{
		Storage: c.storage(), Content: c.params["content"], Filename: c.params["filename"], URL: c.params["url"],
		Algorithm: c.params["checksum-algorithm"], Checksum: c.params["checksum"], Insecure: c.insecure(),
	})
}

func queryURLMetadata(c *call) (any, error) {
	if err := c.checkFile(); err != nil {
		return nil, err
	}
	m, err := c.QueryURLMetadata(c.node(), c.params["url"], c.insecure())
	if err != nil {
		return nil, err
	}
	out := object{}
	addText(out, map[string]string{"filename": m.Filename, "mimetype": m.Mimetype})
	if m.Size > 0 {
		out["size"] = m.Size
	}
	return out, nil
}
