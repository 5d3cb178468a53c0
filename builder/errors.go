package builder

import "errors"

// Errors a caller branches on.
var (
	// ErrImageNotFound: no image of that name, id or prefix.
	ErrImageNotFound = errors.New("image not found")
	// ErrAmbiguous: an id prefix that fits more than one image.
	ErrAmbiguous = errors.New("image id prefix is ambiguous")
	// ErrInvalidName: a text that can name no image.
	ErrInvalidName = errors.New("invalid image name")
	// ErrInvalidRequest: a request that is wrong by itself; nothing was done.
	ErrInvalidRequest = errors.New("invalid request")
	// ErrDockerfile: the Dockerfile is missing or broken, or a step of it failed.
	ErrDockerfile = errors.New("dockerfile")
	// ErrMissingTool: a program of the host that is not installed.
	ErrMissingTool = errors.New("tool is not installed")
	// ErrNotRoot: the operation needs root.
	ErrNotRoot = errors.New("needs root")
	// ErrArchive: an import source that is damaged, unsafe or of no known format.
	ErrArchive = errors.New("unusable archive")
	// ErrCorrupt: an image of the store whose content is not what it was.
	ErrCorrupt = errors.New("image is damaged")
	// ErrUnreachable: a registry or package mirror that does not answer.
	ErrUnreachable = errors.New("unreachable")
	// ErrEngine: the build engine could not be started or died.
	ErrEngine = errors.New("build engine")
)

// hinted adds to an error what the user can do about it.
type hinted struct {
	error
	hint string
}

func withHint(err error, hint string) error {
	if err == nil || hint == "" {
		return err
	}
	return &hinted{err, hint}
}

// Hint is the next step, without a leading "hint:".
func (h *hinted) Hint() string { return h.hint }

func (h *hinted) Unwrap() error { return h.error }
