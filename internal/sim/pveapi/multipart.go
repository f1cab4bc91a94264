package pveapi

import (
	"bytes"
	"net/http"
	"regexp"
	"slices"
)

// file is the file part of an upload.
type file struct {
	name string
	data []byte
}

// readUpload reads a multipart body the way Proxmox's own parser does: the
// fields in one fixed order, the file last and named "filename", each part's
// first header its Content-Disposition. What follows the file is not looked at.
func readUpload(body []byte, boundary string, params map[string]string) (*file, error) {
	bad := &earlyError{http.StatusBadRequest, "Bad Request"}
	order := []string{"content", "checksum-algorithm", "checksum", "filename"}
	header := regexp.MustCompile(`(?i)^Content-Disposition: form-data; name="([^"]*)"(?:; filename="([^"]*)")?\r\n`)
	separator := []byte("\r\n--" + boundary)
	rest, ok := bytes.CutPrefix(body, separator[2:])
	if !ok || boundary == "" {
		return nil, bad
	}
	for next := 0; ; {
		rest, ok = bytes.CutPrefix(rest, []byte("\r\n"))
		if !ok {
			return nil, nil // the end without a file: the missing parameter is reported later
		}
		part, after, ended := bytes.Cut(rest, separator)
		match := header.FindSubmatch(part)
		_, data, found := bytes.Cut(part, []byte("\r\n\r\n"))
		if !ended || match == nil || !found {
			return nil, bad
		}
		at := slices.Index(order, string(match[1]))
		if at < next {
			return nil, bad
		}
		if order[at] == "filename" {
			params["filename"] = string(match[2])
			return &file{name: string(match[2]), data: data}, nil
		}
		params[order[at]] = string(data)
		next, rest = at+1, after
	}
}
