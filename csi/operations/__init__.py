"""Operations made of stages, one module each: what is done to images, devices and mounts, and back."""
