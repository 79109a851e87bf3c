"""Keep the shadows of devices: what each has reported last, and what is wanted of it."""

from typing import Literal

from fastapi import FastAPI
from pydantic import BaseModel

from equipoise import Equipoise, Keyed, SqliteStore


class Shadow(BaseModel):
    """What is known of a device."""

    reported: dict[str, float] = {}
    desired: dict[str, float] = {}


app = FastAPI()
shadows = Keyed("iot/shadows", Shadow, store=SqliteStore("shadows.db"))
Part = Literal["reported", "desired"]


@app.put("/devices/{device}/{part}")
@shadows.route("device")
async def change(device: str, shadow: Shadow, part: Part, values: dict[str, float]) -> Shadow:
    """Note values. Once this has answered, they are saved."""
    getattr(shadow, part).update(values)
    return shadow


@app.get("/devices/{device}")
@shadows.route("device")
async def show(device: str, shadow: Shadow) -> Shadow:
    """Return what is known of a device."""
    return shadow


Equipoise("sqlite:cluster.db", shadows, cluster="iot").install(app)
