package world

import "fmt"

// Error is an answer of the Proxmox API other than success: what its status
// line, message and per-parameter errors say.
type Error struct {
	Status  int
	Message string
	Params  map[string]string // errors of single parameters, for status 400
}

func (e *Error) Error() string { return e.Message }

// failf is the status that Proxmox gives to everything that is neither a bad
// parameter nor a missing privilege, "not found" included.
func failf(format string, args ...any) error {
	return &Error{Status: 500, Message: fmt.Sprintf(format, args...)}
}

// BadParam is what Proxmox answers to one wrong parameter.
func BadParam(name, format string, args ...any) error {
	return badParams(map[string]string{name: fmt.Sprintf(format, args...)})
}

func badParams(params map[string]string) error {
	return &Error{Status: 400, Message: "Parameter verification failed.", Params: params}
}

func denied(path, privilege string) error {
	return &Error{Status: 403, Message: fmt.Sprintf("Permission check failed (%s, %s)", path, privilege)}
}

func noConfigFile(host string, id int) error {
	return failf("Configuration file 'nodes/%s/qemu-server/%d.conf' does not exist", host, id)
}
